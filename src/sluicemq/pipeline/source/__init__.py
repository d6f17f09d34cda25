"""The journal as a Spark source.

options          options of a read
journal_storage  access to segments in a local directory, or over HTTP (http_storage.py)
records            columns of records, from an index or by a scan; names of destinations
selection        filter for records and for whole segments
journal          destinations and message origins that one task or plan has looked up
build            columns of a batch; headers: columns of the rarely set fields
plan             ranges of the journal for each task; reading: one task
readers          spark.read and spark.readStream; offsets: their start and end
"""
