// Connections of clients, which the user can close, and the consumers of each.

import { get, remove } from "../api.js";
import { sendCommand } from "../commands.js";
import { openForm } from "../dialogs.js";
import { h, replaceContent } from "../dom.js";
import { bytes, count, plural } from "../format.js";
import { List, choiceFilter, textFilter } from "../list.js";
import { every, live } from "../live.js";
import { button, command, emptyState, valueList, updateValueList, head, loading, panel, badge, timeElement } from "../parts.js";
import { go } from "../router.js";
import { session } from "../session.js";
import { notify } from "../notifications.js";
import { consumersOfConnection } from "./consumers.js";

export const title = ({ steps }) => (steps[1] ? `Connection ${steps[1]}` : "Connections");

const REFRESH_MS = 3_000;
const PROTOCOLS = [
  "phpmq",
  "phpmq-maintenance",
  "vibemq",
  "jmq",
  "msglite",
  "msglite-http",
  "http",
  "auto",
];

export function show({ steps, signal }) {
  if (steps[1]) return showConnection(steps[1], signal);
  const list = new List({
    path: "connections",
    sort: "started",
    order: "desc",
    filters: [
      textFilter("filter", "Peer, user or client ID"),
      choiceFilter("protocol", "Protocol", [["", "all"], ...PROTOCOLS.map((name) => [name, name])]),
    ],
    table: {
      caption: "Connections",
      stack: true,
      key: ({ id }) => id,
      columns: columns(async (item) => {
        if (await close(item)) list.refresh();
      }),
    },
    emptyContent,
    signal,
  });
  const aside = session.superuser ? null : h("p", { class: "about" }, "Only connections of your own user are listed.");
  return h("div", { class: "page" }, head("Connections", { aside }), panel(null, list.element));
}

function showConnection(id, signal) {
  const facts = h("div");
  const actions = h("div", { class: "actions" });
  const top = head(`Connection ${id}`, { aside: h("p", { class: "about" }, h("a", { href: "#/connections" }, "All connections")) });
  top.append(actions);
  let item = null;
  const onclose = async () => {
    if (await close(item)) go("#/connections");
  };
  const refresh = loading(
    facts,
    async (request) => {
      item = await get(`connections/${encodeURIComponent(id)}`, {}, request);
      const list = facts.querySelector("dl");
      if (list) updateValueList(list, properties(item));
      else replaceContent(facts, valueList(properties(item)));
      if (!actions.firstChild) actions.append(closeButton(item, onclose));
    },
    signal,
  );
  every(REFRESH_MS, refresh, signal);
  return h("div", { class: "page" }, top, panel(null, facts), panel("Consumers", consumersOfConnection(id, signal)));
}

function properties(item) {
  return [
    ["Peer", [item.peer, item.tls && [" ", badge("TLS", "good")]]],
    ["Listener", item.listener],
    ["Protocol", item.protocol],
    ["User", item.user || "–"],
    ["Client ID", item.client_id || "–"],
    ["State", item.state],
    ["Started", timeElement(item.started)],
    ["Received", bytes(item.received_bytes)],
    ["Sent", bytes(item.sent_bytes)],
  ];
}

function closeButton(item, onclose, tone = "danger") {
  return button("Close…", onclose, {
    tone,
    name: `Close ${item.peer}…`,
    disabledReason: session.superuser ? "" : "only a superuser can close a connection",
  });
}

function columns(onclose) {
  return [
    {
      key: "peer",
      label: "Peer",
      sort: true,
      head: true,
      fingerprint: ({ peer, tls }) => `${peer} ${tls}`,
      show: ({ id, peer, tls }) => [h("a", { class: "name", href: `#/connections/${id}` }, peer), tls && badge("TLS", "good")],
    },
    { key: "protocol", label: "Protocol", sort: true, show: ({ protocol }) => protocol },
    { key: "user", label: "User", sort: true, rank: 2, show: ({ user }) => user || "–" },
    {
      key: "client_id",
      label: "Client ID",
      sort: true,
      rank: 2,
      show: ({ client_id: id }) => id || "–",
    },
    { key: "state", label: "State", sort: true, rank: 2, show: ({ state }) => state },
    {
      key: "started",
      label: "Started",
      sort: true,
      first: "desc",
      rank: 3,
      fingerprint: ({ started }) => String(started),
      show: ({ started }) => timeElement(started),
    },
    {
      key: "consumers",
      label: "Consumers",
      sort: true,
      first: "desc",
      number: true,
      rank: 2,
      show: (item) => count(item.consumers),
    },
    {
      key: "received_bytes",
      label: "Received",
      sort: true,
      first: "desc",
      number: true,
      rank: 3,
      show: (item) => bytes(item.received_bytes),
    },
    {
      key: "sent_bytes",
      label: "Sent",
      sort: true,
      first: "desc",
      number: true,
      rank: 3,
      show: (item) => bytes(item.sent_bytes),
    },
    {
      key: "close",
      label: "Actions",
      hidden: true,
      number: true,
      fingerprint: ({ id }) => String(id),
      show: (item, latest) => closeButton(item, () => onclose(latest()), "quiet small"),
    },
  ];
}

/** Ask for confirmation; return whether the connection was closed. */
async function close(item) {
  const consequence =
    item.consumers > 0
      ? `It has ${plural(item.consumers, "consumer")}; their unacked messages are requeued.`
      : "It has no consumers.";
  const done = await openForm({
    title: `Close the connection from ${item.peer}?`,
    text: [consequence, "Most clients reconnect automatically."],
    fields: [
      {
        name: "reason",
        label: "Reason",
        hint: "Recorded in the audit log and sent to the client if its protocol supports that.",
        maxlength: 200,
      },
    ],
    action: "Close",
    tone: "danger",
    submit: ({ reason }) => remove(`connections/${item.id}`, { reason }),
  });
  if (done) notify(`Connection from ${item.peer} closed`);
  return done !== null;
}

function emptyContent(filtered) {
  if (filtered) return emptyState("No matching connections");
  return emptyState(
    "No connections",
    h(
      "p",
      null,
      "This command connects, sends a message and disconnects:",
    ),
    command(sendCommand(live.overview?.listeners, "orders")),
  );
}
