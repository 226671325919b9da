package job

import "testing"

func TestFeeds(t *testing.T) {
	for _, c := range []struct {
		publishes, filter string
		want              bool
	}{
		{"plant/alarms", "plant/#", true},
		{"plant/alarms", "plant/+", true},
		{"plant/alarms", "plant/alarms", true},
		{"plant/alarms", "plant/alarms/#", true}, // it stands for the level above, too (MQTT 3.1.1, section 4.7.1.2)
		{"plant/alarms", "plant/+/x", false},
		{"plant/alarms/x", "plant/+", false},
		{"plant/alarms", "$share/g/plant/+", true},
		{"out/{key}", "in/+", false},
		{"in/{key}", "in/+", true},
		{"in/{key}", "in/7", false},
		{"in/{key}/x", "in/+", false},
		{"{key}", "#", true},
		{"{key}/x", "in/+", false},
		{"{topic}", "in/+", true},
		{"{topic}/x", "in/+", false},
		{"{topic}/x", "in/#", true},
	} {
		if got := feeds(c.publishes, c.filter); got != c.want {
			t.Errorf("%s feeds %s: %v", c.publishes, c.filter, got)
		}
	}
}
