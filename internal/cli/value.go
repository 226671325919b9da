package cli

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// settable reports whether set knows the type.
func settable(value reflect.Value) bool {
	if !value.CanSet() {
		return false
	}
	switch value.Addr().Interface().(type) {
	case *string, *bool, *int, *uint64, *time.Duration, **time.Duration, *[]string, *map[string]string:
		return true
	}
	return false
}

// isBool: given alone it is true.
func (f *field) isBool() bool { return f.value.Kind() == reflect.Bool }

// set gives the field a value, or one more if it holds several. The error says what is expected.
func (f *field) set(text string) (err error) {
	if f.enum != nil && !slices.Contains(f.enum, text) {
		return fmt.Errorf("%q is none of %s", text, oneOf(f.enum))
	}
	switch to := f.value.Addr().Interface().(type) {
	case *string:
		*to = text
	case *bool:
		if *to, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("%q is neither true nor false", text)
		}
	case *int:
		if *to, err = strconv.Atoi(text); err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
	case *uint64:
		if *to, err = strconv.ParseUint(text, 10, 64); err != nil {
			return fmt.Errorf("%q is not a whole number from 0", text)
		}
	case *time.Duration:
		*to, err = duration(text)
	case **time.Duration:
		var d time.Duration
		if d, err = duration(text); err == nil {
			*to = &d
		}
	case *[]string:
		*to = append(*to, strings.Split(text, ",")...)
	case *map[string]string:
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return fmt.Errorf("%q is not of the form K=V", text)
		}
		if *to == nil {
			*to = map[string]string{}
		}
		(*to)[key] = value
	}
	return err
}

func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration such as 90s or 5m", text)
	}
	return d, nil
}

// oneOf lists names: a, b or c.
func oneOf(names []string) string {
	last := len(names) - 1
	if last < 1 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}
