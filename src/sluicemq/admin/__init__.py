"""The broker's HTTP API and console, on the same connections as the protocols.

http_session      one connection: HTTP/1.1 between the broker's connection and the application
app               what every request has to pass, and the table of endpoints
routing           the endpoints: they are served and described from one table
openapi           that description
api_context       what all endpoints are given
server_interface  what the endpoints ask of the process around the broker
errors            the JSON of errors, and their status codes
request_bodies    bodies of requests: of known length, within limits and a budget
pagination        lists, a page at a time
time_slices       long work in slices
printable_names   names in JSON
caller            who sends a request, and whether a browser was tricked into it
browser_sessions  who has logged in with a browser

Every other module has endpoints: `endpoints(context)` lists them.
"""
