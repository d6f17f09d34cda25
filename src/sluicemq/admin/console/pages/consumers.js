// Consumers of a destination or of a connection.

import { receiveCommand } from "../commands.js";
import { h } from "../dom.js";
import { compact, count } from "../format.js";
import { List } from "../list.js";
import { live } from "../live.js";
import { DestinationRef } from "../destination_ref.js";
import { command, emptyState, panel, badge } from "../parts.js";

export function show(destination, signal) {
  const list = new List({
    path: "consumers",
    fixed: { ...destination.filterQuery(), kind: destination.kind },
    table: { caption: "Consumers", stack: true, key: ({ id }) => id, columns: [CONNECTION, ...COLUMNS] },
    emptyContent: () => emptyContent(destination),
    signal,
  });
  return panel(null, list.element);
}

/** Return the consumers of the connection with that id. */
export function consumersOfConnection(id, signal) {
  const list = new List({
    path: "consumers",
    fixed: { connection: id },
    table: { caption: "Consumers", stack: true, key: (item) => item.id, columns: [DESTINATION, ...COLUMNS] },
    emptyContent: () => emptyState("No consumers"),
    signal,
  });
  return list.element;
}

function standbyBadge(item) {
  return !item.active && [" ", badge("standby")];
}

const CONNECTION = {
  key: "connection",
  label: "Connection",
  head: true,
  fingerprint: (item) => `${item.connection} ${item.active}`,
  show: (item) => [h("a", { href: `#/connections/${item.connection}` }, `number ${item.connection}`), standbyBadge(item)],
};

const DESTINATION = {
  key: "destination",
  label: "Destination",
  head: true,
  fingerprint: (item) => `${item.kind} ${item.destination} ${item.active}`,
  show(item) {
    const destination = new DestinationRef(item.kind, item.destination, item.destination_base64 ?? "");
    return [h("a", { class: "name", href: destination.href() }, String(destination)), standbyBadge(item)];
  },
};

const COLUMNS = [
  { key: "protocol", label: "Protocol", show: ({ protocol }) => protocol },
  {
    key: "subscription",
    label: "Subscription",
    rank: 2,
    show: ({ subscription }) => subscription || "–",
  },
  {
    key: "selector",
    label: "Selector",
    rank: 2,
    fingerprint: ({ selector }) => selector ?? "",
    show: ({ selector }) => (selector ? h("code", null, selector) : "–"),
  },
  {
    key: "credit",
    label: "Credit",
    number: true,
    show: ({ credit }) => compact(credit),
  },
  { key: "unacked", label: "Unacked", number: true, show: (item) => count(item.unacked) },
  { key: "delivered", label: "Delivered", number: true, show: (item) => count(item.delivered) },
];

function emptyContent(destination) {
  const receive = receiveCommand(live.overview?.listeners, destination.name);
  return emptyState(
    "No consumers",
    h("p", null, "Messages stay ready until a consumer is attached."),
    destination.kind === "queue" && receive && command(receive),
  );
}
