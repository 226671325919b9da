// Package api has the types of the HTTP API under /api/v1 and its client. The names in the JSON are
// a contract: scripts are written against them, so fields are added and never renamed.
//
// Units are in the names: _ms is milliseconds, _bytes bytes. Times are RFC 3339. A listing is never
// null; an optional object that is absent is null.
package api
