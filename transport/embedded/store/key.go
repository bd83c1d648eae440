package store

import "encoding/binary"

func headKey(stream string) []byte { return append([]byte{'h'}, stream...) }

func eventKey(id uint64, number int64) []byte {
	k := make([]byte, 17)
	k[0] = 'd'
	binary.BigEndian.PutUint64(k[1:], id)
	binary.BigEndian.PutUint64(k[9:], uint64(number))
	return k
}

func positionKey(position uint64) []byte {
	k := make([]byte, 9)
	k[0] = 'p'
	binary.BigEndian.PutUint64(k[1:], position)
	return k
}

var nextIDKey = []byte{'n'}

// pair encodes what heads and positions hold.
func pair(id uint64, number int64) []byte {
	v := make([]byte, 16)
	binary.BigEndian.PutUint64(v, id)
	binary.BigEndian.PutUint64(v[8:], uint64(number))
	return v
}

func unpair(v []byte) (id uint64, number int64, ok bool) {
	if len(v) != 16 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(v), int64(binary.BigEndian.Uint64(v[8:])), true
}
