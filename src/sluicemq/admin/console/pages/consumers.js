// Who consumes from a destination.

import { receiving } from "../commands.js";
import { h } from "../dom.js";
import { count } from "../format.js";
import { List } from "../list.js";
import { live } from "../live.js";
import { command, empty, panel, tag } from "../parts.js";
import { destinationQuery } from "./messages.js";

export function show(place, signal) {
  const list = new List({
    path: "consumers",
    fixed: destinationQuery(place),
    table: { caption: "Consumers", stack: true, key: ({ id }) => id, columns: COLUMNS },
    none: () => none(place),
    signal,
  });
  return panel(null, list.element);
}

const COLUMNS = [
  {
    key: "connection",
    label: "Connection",
    head: true,
    same: (item) => `${item.peer ?? ""} ${item.connection}`,
    show: (item) => h("a", { href: "#/connections" }, item.peer || `number ${item.connection}`),
  },
  { key: "protocol", label: "Protocol", show: ({ protocol }) => protocol },
  { key: "subscription", label: "Subscription", rank: 2, show: ({ subscription }) => subscription || "–" },
  {
    key: "selector",
    label: "Selector",
    rank: 2,
    same: ({ selector }) => selector ?? "",
    show: ({ selector }) => (selector ? h("code", null, selector) : "–"),
  },
  {
    key: "credit",
    label: "Credit",
    number: true,
    same: ({ credit }) => String(credit),
    show: ({ credit }) => (credit > 0 ? count(credit) : tag(String(credit ?? "–"), credit === 0 ? "brass" : "")),
  },
  { key: "unacked", label: "Unacked", number: true, show: (item) => count(item.unacked) },
  { key: "delivered", label: "Delivered", number: true, show: (item) => count(item.delivered) },
];

function none(place) {
  const back = receiving(live.overview?.listeners, place.name);
  return empty(
    "Nobody consumes from here",
    h("p", null, "Messages wait until somebody does."),
    place.kind === "queue" && back && command(back),
  );
}
