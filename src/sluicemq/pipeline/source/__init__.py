"""The journal as a Spark source.

options          options of a read
journal_storage  access to segments in a local directory, or over HTTP (http_storage.py)
segment_scan     records of segments that have no index yet
heads            index columns of records, from an index or from record headers
selection        filter for records and for whole segments
names            destination names by number
journal          destinations and message origins that one task or plan has looked up
build            columns of a batch; headers: columns of the rarely set fields
plan             ranges of the journal for each task; reading: one task
readers          spark.read and spark.readStream; offsets: their start and end
"""
