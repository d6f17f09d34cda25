"""The broker's HTTP API and console, on the same connections as the protocols.

http_session      one connection: HTTP/1.1 between the broker's connection and the application
app               ASGI application: checks of every request, and the table of endpoints
endpoints         context of the endpoints, with the interface of the server process; requests and
                  their bodies, route table
openapi           OpenAPI document of the endpoints
errors            the JSON of errors and names, and their status codes
time_slices       time slices of long operations, and waiting for the journal
caller            authentication of requests, browser sessions, cross-site protection
history           samples of the last hour
metrics           table of the metrics, and their text format
collectors        collect the metrics of destinations, of the process and of requests

Every other module has services, whose methods carry out operations that `sluicemq.management`
declares; the decorator `handles` binds them.
"""
