package api

// MetricKind is the type of a metric family in the Prometheus text format.
type MetricKind string

// Kinds of metrics.
const (
	Counter MetricKind = "counter"
	Gauge   MetricKind = "gauge"
)

// Label is one label of a sample.
type Label struct{ Name, Value string }

// Sample is one value of a family. Its labels have distinct names.
type Sample struct {
	Labels []Label
	Value  float64
}

// Family is a metric with its samples, which have distinct sets of labels. Names begin with "weir_"
// and a counter's ends with "_total".
type Family struct {
	Name    string
	Help    string
	Kind    MetricKind
	Samples []Sample
}
