package main

import "fmt"

func fmtPayload(channel string, n int, seq uint64) []byte {
	return fmt.Appendf(nil, `{"number":%d,"channel":"%s","value":{"n":%d,"seq":%d}}`, n, channel, n, seq)
}

func fmtRound(number, n, readings int) []byte {
	return fmt.Appendf(nil, `{"number":%d,"channel":"c","n":%d,"readings":%d}`, number, n, readings)
}
