// Takes the place of a library that no program here uses: its go.mod would add 6000 lines to go.sum.
module contrib.go.opencensus.io/exporter/stackdriver
