"""The broker over HTTP: a room like those of the protocols, on the same connections.

session   one connection: HTTP/1.1 between the broker's connection and the application
app       the routes, and what every request has to pass
errors    refusals, and how they are told
identity  who sends a request
journal   the journal's segments, for readers elsewhere
slots     what such readers still need
batches   messages written as parts of a batch, exactly once
"""
