"""The journal as a Spark source.

options     what a user may set
journal_storage  where segments are: a directory here, or (http_storage.py) a broker's HTTP address
segment_scan, tail  records of segments that have no index yet
heads       the index columns of records, however they were found
selection   which records are wanted, and which segments hold none of them
names       destinations by number; origins: publishing time and protocol by message
build       columns of a batch; headers: those of its rarely set fields
plan        pieces of the journal for the tasks; reading: one task
batch       spark.read; stream, offsets, slots: spark.readStream
"""
