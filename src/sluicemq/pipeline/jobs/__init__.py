"""Tables of the lake and the DataFrame functions that compute them."""
