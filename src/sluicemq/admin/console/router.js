// Routes: the part of the URL behind `#`, such as `#/queue/orders/messages?state=ready`.
//
// A page is a module with `title(route)` and `show(route)`; `show` returns the page's element at once
// and fills it as responses arrive, until `route.signal` is aborted because the user leaves the page.

/** Return the route of the current page: the decoded segments (`steps`) of its path, and its query. */
export function currentRoute() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const steps = path.split("/").filter(Boolean).map(decode);
  return { steps, query: new URLSearchParams(search) };
}

function decode(step) {
  try {
    return decodeURIComponent(step);
  } catch {
    return step;
  }
}

/** Store the state of a list in the query of the route. */
export function storeQuery(values) {
  const [path] = location.hash.split("?", 1);
  const query = new URLSearchParams();
  const encodedName = currentRoute().query.get("name_base64");
  if (encodedName) query.set("name_base64", encodedName);
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  const search = query.toString();
  history.replaceState(null, "", `${path || "#/"}${search ? `?${search}` : ""}`);
}

/** Go to a page. */
export function go(hash) {
  if (location.hash === hash) dispatchEvent(new HashChangeEvent("hashchange"));
  else location.hash = hash;
}
