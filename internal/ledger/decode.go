package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Payload is the template that a counting job's sink must have for [Decode] to read what it publishes.
const Payload = `{"number":{number},"channel":"{channel}","value":{value}}`

// message is a payload made with [Payload] of the value {"n":count,"seq":seq}.
type message struct {
	Number  *uint64 `json:"number"`
	Channel string  `json:"channel"`
	Value   struct {
		N   *uint64 `json:"n"`
		Seq uint64  `json:"seq"`
	} `json:"value"`
}

// Decode reads a record from a message of a counting job's sink. The last level of the topic names the
// sensor.
func Decode(topic string, payload []byte) (Record, error) {
	var m message
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	err := d.Decode(&m)
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = errors.New("more than one JSON value")
		}
	}
	sensor := topic[strings.LastIndexByte(topic, '/')+1:]
	switch {
	case err != nil:
	case m.Number == nil || m.Value.N == nil || m.Channel == "":
		err = errors.New("number, channel or value.n is missing")
	case *m.Number == 0 || *m.Value.N == 0:
		err = errors.New("numbers and counts start at 1")
	case sensor == "":
		err = errors.New("the topic names no sensor")
	}
	if err != nil {
		return Record{}, fmt.Errorf("message on %s: %w: %.200q", topic, err, payload)
	}
	return Record{Sensor: sensor, Channel: m.Channel, Number: *m.Number, Count: *m.Value.N, Seq: m.Value.Seq}, nil
}
