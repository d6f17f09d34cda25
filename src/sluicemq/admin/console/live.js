// Stream of live statistics, and the state of the connection to the broker.
//
// One stream for the page, closed while the page is hidden: browsers limit the connections to one
// host, and hidden tabs need no statistics.

import { ROOT, ApiError, get } from "./api.js";

/** Delay of reconnecting in ms: it doubles from the minimum to the maximum. */
const MIN_RETRY_MS = 500;
const MAX_RETRY_MS = 8_000;
/** Time without an event after which the stream is closed, in ms. */
const SILENCE_TIMEOUT_MS = 12_000;

const watchers = new Set();
const stateWatchers = new Set();
let source = null;
let retryDelay = MIN_RETRY_MS;
let retryTimer = 0;
let silenceTimer = 0;
let enabled = false;

export const live = {
  /** "connecting", "live" or "disconnected". */
  state: "connecting",
  /** Latest statistics, or null. */
  overview: null,
};

/** Call back with new statistics, and at once if there are any, until `signal`. */
export function watch(callback, signal) {
  watchers.add(callback);
  signal?.addEventListener("abort", () => watchers.delete(callback));
  if (live.overview) callback(live.overview);
}

/** Call back when the state changes. */
export function watchState(callback) {
  stateWatchers.add(callback);
}

/** Publish statistics, of the stream or of a request, to the watchers. */
export function setOverview(overview) {
  live.overview = overview;
  for (const callback of watchers) callback(overview);
}

function setState(state) {
  if (live.state === state) return;
  live.state = state;
  for (const callback of stateWatchers) callback(state);
}

function restartSilenceTimer() {
  clearTimeout(silenceTimer);
  silenceTimer = setTimeout(onStreamLost, SILENCE_TIMEOUT_MS);
}

function close() {
  clearTimeout(silenceTimer);
  clearTimeout(retryTimer);
  source?.close();
  source = null;
}

function open() {
  close();
  if (!enabled || document.hidden) return;
  source = new EventSource(new URL("events", ROOT), { withCredentials: true });
  source.addEventListener("overview", (event) => {
    retryDelay = MIN_RETRY_MS;
    restartSilenceTimer();
    setState("live");
    setOverview(JSON.parse(event.data));
  });
  source.addEventListener("logout", onStreamLost);
  source.onopen = restartSilenceTimer;
  source.onerror = onStreamLost;
  restartSilenceTimer();
}

/** Find out whether the stream has ended because of the broker or of the session. A broker at its
    limit of streams still answers requests for statistics. */
async function onStreamLost() {
  close();
  try {
    setOverview(await get("overview"));
    setState("live");
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return; // the login page is open
    setState("disconnected");
  }
  clearTimeout(retryTimer);
  retryTimer = setTimeout(open, retryDelay);
  retryDelay = Math.min(retryDelay * 2, MAX_RETRY_MS);
}

/** Reconnect without delay. */
export function reconnect() {
  retryDelay = MIN_RETRY_MS;
  open();
}

/** Open the stream after a login. */
export function start() {
  enabled = true;
  open();
}

/** Close the stream until the next `start`. */
export function stop() {
  enabled = false;
  live.overview = null;
  live.state = "connecting";
  close();
}

document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));

/**
 * Call `step` at once and then every `interval` ms until `signal` is aborted: never concurrently, and
 * not while the page is hidden or the broker does not respond. `step` must handle its own errors.
 */
export function every(interval, step, signal) {
  let timer = 0;
  const run = async () => {
    if (!document.hidden && live.state !== "disconnected") await step();
    if (!signal.aborted) timer = setTimeout(run, interval);
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  return run();
}
