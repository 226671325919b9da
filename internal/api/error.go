package api

import (
	"errors"
	"fmt"
	"net/http"
)

// Error is a failed request: what failed and where, and what can be done about it. A backend
// returns one to choose the HTTP status; any other error becomes 500 (or 504 if the deadline of the
// request's context has passed).
type Error struct {
	Status  int    `json:"-"` // HTTP status
	Message string `json:"error"`
	Hint    string `json:"hint,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Invalid says that what the caller gave is wrong (400; exit code 2 on the command line).
func Invalid(hint, format string, args ...any) *Error {
	return &Error{http.StatusBadRequest, fmt.Sprintf(format, args...), hint}
}

// NotFound says that what the caller names does not exist (404).
func NotFound(hint, format string, args ...any) *Error {
	return &Error{http.StatusNotFound, fmt.Sprintf(format, args...), hint}
}

// Conflict says that the present state forbids it, or that somebody else was faster (409).
func Conflict(hint, format string, args ...any) *Error {
	return &Error{http.StatusConflict, fmt.Sprintf(format, args...), hint}
}

// Unavailable says that something outside this agent is needed and not reachable now (503).
func Unavailable(hint, format string, args ...any) *Error {
	return &Error{http.StatusServiceUnavailable, fmt.Sprintf(format, args...), hint}
}

// IsInvalid tells whether the request itself was wrong: repeating it unchanged cannot help.
func IsInvalid(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusMethodNotAllowed:
		return true
	}
	return false
}
