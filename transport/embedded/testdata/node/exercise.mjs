// Exercises the official NodeJS client against a running node, whose connection
// string is the first argument. Prints "ok" last; anything else is a failure.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import {
  ANY, BACKWARDS, END, EventStoreDBClient, FORWARDS, NO_STREAM, START, STREAM_EXISTS, StreamDeletedError, StreamNotFoundError,
  WrongExpectedVersionError, persistentSubscriptionToStreamSettingsFromDefaults, eventTypeFilter, jsonEvent, binaryEvent, streamNameFilter,
} from "@eventstore/db-client";

const client = EventStoreDBClient.connectionString(process.argv[2]);
const name = (what) => `node-${what}-${randomUUID()}`;
const event = (n, type = "tick") => jsonEvent({ type, data: { n }, metadata: { m: n } });
const collect = async (events) => {
  const all = [];
  for await (const e of events) all.push(e);
  return all;
};

const cases = {
  async "append in all modes, and its errors"() {
    const stream = name("append");
    await assert.rejects(client.appendToStream(stream, event(0), { expectedRevision: STREAM_EXISTS }), WrongExpectedVersionError);
    let r = await client.appendToStream(stream, [event(0), event(1)], { expectedRevision: NO_STREAM });
    assert.equal(r.success, true);
    assert.equal(r.nextExpectedRevision, 1n);
    assert.ok(r.position.commit > 0n);
    r = await client.appendToStream(stream, event(2), { expectedRevision: 1n });
    assert.equal(r.nextExpectedRevision, 2n);
    await client.appendToStream(stream, event(3), { expectedRevision: ANY });
    await client.appendToStream(stream, event(4), { expectedRevision: STREAM_EXISTS });
    await assert.rejects(client.appendToStream(stream, event(5), { expectedRevision: 1n }), (e) => {
      assert.ok(e instanceof WrongExpectedVersionError, String(e));
      assert.equal(e.actualVersion, 4n);
      return true;
    });
    // With credentials of its own a call goes by Append, not by BatchAppend.
    await client.appendToStream(stream, event(5), { credentials: { username: "a", password: "b" } });
    assert.equal((await collect(client.readStream(stream))).length, 6);
  },
  async "the same ids are written once"() {
    const stream = name("again");
    const once = [event(0), event(1)];
    for (let i = 0; i < 3; i++) await client.appendToStream(stream, once, { expectedRevision: NO_STREAM });
    assert.equal((await collect(client.readStream(stream))).length, 2);
  },
  async "a thousand appends at once on one call"() {
    const streams = Array.from({ length: 20 }, () => name("many"));
    await Promise.all(Array.from({ length: 1000 }, (_, i) => client.appendToStream(streams[i % 20], event(i))));
    for (const stream of streams) {
      const all = await collect(client.readStream(stream, { maxCount: 100 }));
      assert.deepEqual(all.map((e) => e.event.revision), Array.from({ length: 50 }, (_, i) => BigInt(i)));
    }
  },
  async "read in both directions, with what was written"() {
    const stream = name("read");
    const bytes = binaryEvent({ type: "raw", data: Buffer.from([0, 255, 7]), metadata: Buffer.from([1]) });
    await client.appendToStream(stream, [event(0), bytes, event(2)]);
    const all = await collect(client.readStream(stream, { direction: FORWARDS, fromRevision: START }));
    assert.deepEqual(all[0].event.data, { n: 0 });
    assert.deepEqual(all[0].event.metadata, { m: 0 });
    assert.deepEqual([...all[1].event.data], [0, 255, 7]);
    assert.equal(all[1].event.id, bytes.id);
    assert.ok(Math.abs(Date.now() - all[1].event.created.getTime()) < 60_000);
    const back = await collect(client.readStream(stream, { direction: BACKWARDS, fromRevision: END, maxCount: 2 }));
    assert.deepEqual(back.map((e) => e.event.revision), [2n, 1n]);
    await assert.rejects(collect(client.readStream(name("missing"))), StreamNotFoundError);
    const newest = await collect(client.readAll({ direction: BACKWARDS, fromPosition: END, maxCount: 3 }));
    assert.equal(newest[0].event.streamId, stream);
    const from = all[1].event.position ?? newest[1].event.position;
    assert.equal((await collect(client.readAll({ fromPosition: from, maxCount: 2 }))).length, 2);
  },
  async "filtered subscriptions of all"() {
    const stream = name("filter");
    await client.appendToStream(stream, [event(0, "keep-a"), event(1, "drop"), event(2, "keep-b")]);
    const byType = client.subscribeToAll({ fromPosition: START, filter: eventTypeFilter({ prefixes: ["keep-"] }) });
    const kept = [];
    for await (const { event: e } of byType) {
      kept.push(e.type);
      if (kept.length === 2) break;
    }
    assert.deepEqual(kept, ["keep-a", "keep-b"]);
    let checkpoints = 0;
    const sub = client.subscribeToAll({
      fromPosition: START,
      filter: streamNameFilter({ regex: `^${stream}$`, checkpointInterval: 1, checkpointReached: () => checkpoints++ }),
    });
    const seen = [];
    for await (const { event: e } of sub) {
      seen.push(e.revision);
      if (seen.length === 3) client.appendToStream(stream, event(3));
      if (seen.length === 4) break;
    }
    assert.deepEqual(seen, [0n, 1n, 2n, 3n]);
    assert.ok(checkpoints > 0);
  },
  async "subscribe to a stream, replayed and live"() {
    const stream = name("sub");
    await client.appendToStream(stream, [event(0), event(1)]);
    const sub = client.subscribeToStream(stream, { fromRevision: START });
    const seen = [];
    for await (const { event: e } of sub) {
      seen.push(e.data.n);
      if (seen.length === 2) client.appendToStream(stream, [event(2), event(3)]);
      if (seen.length === 4) break;
    }
    assert.deepEqual(seen, [0, 1, 2, 3]);
  },
  async "delete, write anew, tombstone"() {
    const stream = name("delete");
    await client.appendToStream(stream, [event(0), event(1)]);
    await client.deleteStream(stream, { expectedRevision: 1n });
    await assert.rejects(collect(client.readStream(stream)), StreamNotFoundError);
    await client.appendToStream(stream, event(2), { expectedRevision: NO_STREAM });
    assert.deepEqual((await collect(client.readStream(stream))).map((e) => e.event.revision), [2n]);
    await assert.rejects(client.deleteStream(stream, { expectedRevision: 0n }), WrongExpectedVersionError);
    await client.tombstoneStream(stream, { expectedRevision: ANY });
    await assert.rejects(collect(client.readStream(stream)), StreamDeletedError);
    await assert.rejects(client.appendToStream(stream, event(3)), StreamDeletedError);
  },
  async "metadata and what it hides"() {
    const stream = name("meta");
    await client.appendToStream(stream, Array.from({ length: 5 }, (_, i) => event(i)));
    assert.equal((await client.getStreamMetadata(stream)).metadata, undefined);
    await client.setStreamMetadata(stream, { maxCount: 2, colour: "red" });
    const { metadata } = await client.getStreamMetadata(stream);
    assert.equal(metadata.maxCount, 2);
    assert.equal(metadata.colour, "red");
    assert.deepEqual((await collect(client.readStream(stream))).map((e) => e.event.revision), [3n, 4n]);
  },
  async "what is not offered says so"() {
    await assert.rejects(client.createPersistentSubscriptionToStream(name("psub"), "g", persistentSubscriptionToStreamSettingsFromDefaults()), /UNIMPLEMENTED|unknown service|supported/i);
  },
};

for (const [what, check] of Object.entries(cases)) {
  await check();
  console.log(what);
}
await client.dispose();
console.log("ok");
