// Connections of clients, which the user can close.

import { remove } from "../api.js";
import { sendCommand } from "../commands.js";
import { openForm } from "../dialogs.js";
import { h } from "../dom.js";
import { bytes, count, plural } from "../format.js";
import { List, choiceFilter, textFilter } from "../list.js";
import { live } from "../live.js";
import { button, command, emptyState, head, panel, badge, timeElement } from "../parts.js";
import { session } from "../session.js";
import { notify } from "../notifications.js";

export const title = () => "Connections";

const PROTOCOLS = ["phpmq", "vibemq", "jmq", "msglite", "http"];

export function show({ signal }) {
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
      columns: columns((item) => close(item, list)),
    },
    emptyContent,
    signal,
  });
  const aside = session.superuser ? null : h("p", { class: "about" }, "Only connections of your own user are listed.");
  return h("div", { class: "page" }, head("Connections", { aside }), panel(null, list.element));
}

function columns(onclose) {
  return [
    {
      key: "peer",
      label: "Peer",
      sort: true,
      head: true,
      fingerprint: ({ peer, tls }) => `${peer} ${tls}`,
      show: ({ peer, tls }) => [h("span", { class: "name" }, peer), tls && badge("TLS", "good")],
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
      show: (item, latest) =>
        button("Close…", () => onclose(latest()), {
          tone: "quiet small",
          name: `Close ${item.peer}…`,
          disabledReason: session.superuser ? "" : "only a superuser can close a connection",
        }),
    },
  ];
}

async function close(item, list) {
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
  if (!done) return;
  notify(`Connection from ${item.peer} closed`);
  list.refresh();
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
