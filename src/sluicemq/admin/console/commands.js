// Commands to copy into a terminal, with the addresses that this broker listens on.

/** Protocols that `sluicemq send` speaks, the simplest first. */
const CLIENT_PROTOCOLS = ["phpmq", "msglite", "vibemq", "jmq"];
const WILDCARD_HOSTS = new Set(["0.0.0.0", "[::]", "*", ""]);

/** Return the text quoted for a shell. */
export function quoted(word) {
  if (/^[\w@%+=:,./-]+$/.test(word)) return word;
  return `'${word.replaceAll("'", "'\\''")}'`;
}

function reachable(url) {
  const [base] = url.split("?", 1);
  const scheme = base.slice(0, base.indexOf(":"));
  const rest = base.slice(base.indexOf("://") + 3).replace(/\/$/, "");
  const host = rest.slice(0, rest.lastIndexOf(":"));
  const port = rest.slice(rest.lastIndexOf(":"));
  return { scheme, address: `${scheme}://${WILDCARD_HOSTS.has(host) ? location.hostname : host}${port}` };
}

function clientAddress(listeners) {
  const open = (listeners ?? []).map(({ url }) => reachable(url));
  for (const protocol of CLIENT_PROTOCOLS) {
    const match = open.find(({ scheme }) => scheme === protocol);
    if (match) return match.address;
  }
  return null;
}

function api(name) {
  const base = new URL("../api/v1/", location.href.split("#")[0]);
  return new URL(`destinations/queue/${encodeURIComponent(name)}/messages`, base).href;
}

/** Return a command that sends a message to a queue. */
export function sendCommand(listeners, name, body = "hello") {
  const address = clientAddress(listeners);
  if (address) return `sluicemq send ${quoted(`${address}/${encoded(name)}`)} ${quoted(body)}`;
  return `curl --json '{"body": "${body}"}' ${quoted(api(name))}`;
}

/** Return a command that receives a message; null if no listener has a suitable protocol. */
export function receiveCommand(listeners, name) {
  const address = clientAddress(listeners);
  return address && `sluicemq receive ${quoted(`${address}/${encoded(name)}`)}`;
}

function encoded(name) {
  return name.split("/").map(encodeURIComponent).join("/");
}
