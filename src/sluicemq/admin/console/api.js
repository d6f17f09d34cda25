// Requests to the broker's HTTP API (docs/http.md). Relative to the page, so that the console also
// works behind a proxy that serves it below a path of its own.

import { session } from "./session.js";

export const ROOT = new URL("../api/v1/", location.href.split("#")[0]);

const TIMEOUT_MS = 15_000;
/** Timeout of operations on all messages of a destination, whose duration depends on their number. */
export const LONG_TIMEOUT_MS = 600_000;

/** Error response of the API; `status` 0: the broker has not responded. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Return whether the request was aborted by its caller. */
export function isAborted(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/** Return the URL of a resource of the API. Values of `query` that are null or "" are omitted. */
export function apiUrl(path, query = {}) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

function decodeError(status, text) {
  let details = {};
  try {
    details = JSON.parse(text);
  } catch {
    // the response may be a proxy's; then there is only the status
  }
  const { code = "no-code", detail = `the broker responded with status ${status}` } = details ?? {};
  return new ApiError(status, code, detail);
}

function decode(status, text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(status, "no-json", "the response is not the broker's; it may be a proxy's");
  }
}

/**
 * Send a request; return the decoded response, or null if it has no content.
 *
 * `query` and `body` are objects; `signal` aborts the request; `timeout` is in ms. Throws ApiError.
 */
export async function call(method, path, { query, body, signal, timeout = TIMEOUT_MS } = {}) {
  const headers = { Accept: "application/json, application/problem+json", "X-Requested-With": "console" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET" && session.csrfToken) headers["X-CSRF-Token"] = session.csrfToken;
  const limit = AbortSignal.timeout(timeout);
  let response;
  let text;
  try {
    response = await fetch(apiUrl(path, query), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
      cache: "no-store",
      credentials: "same-origin",
    });
    text = await response.text();
  } catch (error) {
    if (signal?.aborted) throw new DOMException("request aborted", "AbortError");
    if (error.name === "TimeoutError") {
      throw new ApiError(0, "request-timeout", `no response within ${timeout / 1000} s`);
    }
    throw new ApiError(0, "unreachable", "the broker cannot be reached");
  }
  if (!response.ok) {
    const apiError = decodeError(response.status, text);
    const isWrongPassword = path === "session/password" && apiError.code === "authentication-failed";
    if (apiError.status === 401 && !isWrongPassword) session.end(apiError);
    throw apiError;
  }
  return decode(response.status, text);
}

export const get = (path, query, signal) => call("GET", path, { query, signal });
export const post = (path, body = {}, options = {}) => call("POST", path, { body, ...options });
export const put = (path, body, options = {}) => call("PUT", path, { body, ...options });
export const remove = (path, query, body) => call("DELETE", path, { query, body });
