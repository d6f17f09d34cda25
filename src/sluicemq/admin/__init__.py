"""The broker over HTTP: a room like those of the protocols, on the same connections.

session     one connection: HTTP/1.1 between the broker's connection and the application
app         what every request has to pass, and the rooms of endpoints
routing     the table of endpoints: it serves, and describes itself
openapi     that description
context     what every room is given
ports       what the rooms ask of the process around the broker
errors      refusals, and how they are told
bodies      bodies of requests: of known length, within limits and a budget
paging      lists, a page at a time
pace        long work in slices
naming      names in JSON
identity    who sends a request, and whether a browser was tricked into it
sessions    who has logged in with a browser

Every other module is a room: `endpoints(context)` is what there is to ask for.
"""
