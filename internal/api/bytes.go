package api

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// Bytes is a key or value of a record: in JSON a string if it is UTF-8, else {"base64": "…"}.
type Bytes []byte

type base64Bytes struct {
	Base64 *string `json:"base64"`
}

// MarshalJSON implements [json.Marshaler].
func (b Bytes) MarshalJSON() ([]byte, error) {
	if utf8.Valid(b) {
		return json.Marshal(string(b))
	}
	s := base64.StdEncoding.EncodeToString(b)
	return json.Marshal(base64Bytes{&s})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (b *Bytes) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err == nil {
		*b = Bytes(s)
		return nil
	}
	var wrapped base64Bytes
	if err := json.Unmarshal(data, &wrapped); err != nil || wrapped.Base64 == nil {
		return fmt.Errorf(`neither a string nor {"base64": "…"}: %.40s`, data)
	}
	raw, err := base64.StdEncoding.DecodeString(*wrapped.Base64)
	if err != nil {
		return fmt.Errorf("base64 of a value: %w", err)
	}
	*b = raw
	return nil
}
