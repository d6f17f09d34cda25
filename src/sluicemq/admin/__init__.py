"""The broker's HTTP API and console, on the same connections as the protocols.

http_session      one connection: HTTP/1.1 between the broker's connection and the application
app               ASGI application: checks of every request, and the table of endpoints
routing           endpoints, routes and requests
openapi           OpenAPI document of the endpoints
api_context       dependencies of all endpoints
server_interface  interface of the server process that the endpoints use
errors            the JSON of errors, and their status codes
request_bodies    limits and memory budget of request bodies
pagination        pages of lists
time_slices       time slices of long operations
printable_names   names in JSON
caller            authentication of requests, and protection against cross-site requests
browser_sessions  sessions of users who have logged in with a browser

Every other module has endpoints: `endpoints(context)` lists them.
"""
