// One message: headers, properties and body.

import { deleteMessages, redeliverMessages, redriveMessages, transferMessages } from "../actions.js";
import { apiUrl, get } from "../api.js";
import { bodyView, value } from "../body.js";
import { h, replaceContent } from "../dom.js";
import { bytes, count } from "../format.js";
import { DestinationRef } from "../destination_ref.js";
import { button, emptyState, valueList, head, loading, panel, badge, timeElement } from "../parts.js";
import { go, currentRoute } from "../router.js";
import { session } from "../session.js";

const MAX_BODY = 262_144;

/** Show a message in the element of a page. */
export function fillPage(element, destination, id, signal) {
  const subscription = currentRoute().query.get("subscription") ?? "";
  const listHref = destination.href("/messages", subscription ? { subscription } : {});
  const listLink = h("a", { href: listHref }, destination.name);
  const content = h("div", { class: "page" });
  const actions = h("div", { class: "actions" });
  const top = head(`Message ${id}`, {
    aside: h("p", { class: "about" }, "In ", h("span", { class: "name" }, listLink)),
  });
  top.append(actions);
  replaceContent(element, top, content);
  const path = `/messages/${encodeURIComponent(id)}`;
  loading(
    content,
    async () => {
      const query = destination.query({ max_body_bytes: MAX_BODY, subscription });
      const message = await get(destination.path(path), query, signal);
      replaceContent(actions, tools(destination, message, listHref));
      replaceContent(content, view(destination, path, message));
    },
    signal,
  )();
}

function tools(destination, message, listHref) {
  const selection = {
    ids: [message.id],
    ...(message.subscription && { subscription: message.subscription }),
  };
  const messages = `message ${message.id}`;
  const consume = session.denialReason("consume", destination.name);
  const thenLeave = (action) => async () => {
    if (await action(destination, messages, selection)) go(listHref);
  };
  const move = (target, ...rest) => transferMessages(target, "move", ...rest);
  const isUnacked = message.state === "unacked";
  const unackedReason = isUnacked ? "a consumer has it unacked" : "";
  const needsManage = isUnacked && !message.subscription;
  const endReason = consume || (needsManage && session.denialReason("manage", destination.name));
  return [
    message.dead_letter &&
      button("Redrive…", thenLeave(redriveMessages), { disabledReason: consume || unackedReason, tone: "primary" }),
    button("Move…", thenLeave(move), { disabledReason: consume || unackedReason }),
    button("Copy…", () => transferMessages(destination, "copy", messages, selection), {
      disabledReason: session.denialReason("browse", destination.name),
    }),
    message.state !== "ready" &&
      button("Redeliver…", thenLeave(redeliverMessages), { disabledReason: endReason }),
    button("Delete…", thenLeave(deleteMessages), { disabledReason: endReason, tone: "danger" }),
  ];
}

function view(destination, path, message) {
  const { body, properties = {} } = message;
  const raw = apiUrl(
    destination.path(`${path}/body`),
    destination.query({ subscription: message.subscription }),
  );
  const download = h(
    "a",
    { href: raw, download: `message-${message.id}` },
    `Download, ${bytes(message.size)}`,
  );
  const entries = Object.entries(properties);
  return [
    message.dead_letter && deadLetterPanel(message.dead_letter),
    panel(
      "Body",
      [
        body.truncated &&
          h(
            "p",
            { class: "hint" },
            `Only the first part of ${bytes(message.size)} is displayed; the download is complete.`,
          ),
        bodyView(body),
      ],
      { aside: h("span", null, badge(body.kind), " ", download) },
    ),
    h(
      "div",
      { class: "columns-2" },
      panel("Headers", valueList(headers(message))),
      panel(
        "Properties",
        entries.length
          ? valueList(entries.map(([name, typed]) => [h("code", null, name), value(typed)]))
          : emptyState("No properties"),
      ),
    ),
  ];
}

function deadLetterPanel({ reason, original_destination: origin, attempts, time }) {
  const pairs = [["Reason", badge(reason, "bad")]];
  if (origin) {
    const from = DestinationRef.of(origin);
    pairs.push(["Original destination", h("a", { class: "name", href: from.href() }, String(from))]);
  }
  pairs.push(["Deliveries", count(attempts)], ["Time", timeElement(Date.parse(time))]);
  return panel("Dead letter", valueList(pairs));
}

function headers(message) {
  const { reply_to: reply } = message;
  const pairs = [
    ["State", message.state],
    ["Subscription", message.subscription],
    ["Protocol", message.protocol],
    ["Durability", message.durability],
    ["Priority", String(message.priority)],
    ["Published", timeElement(message.published)],
    ["Client timestamp", message.timestamp !== message.published ? timeElement(message.timestamp) : ""],
    ["Expires", message.expiration ? timeElement(message.expiration) : "never"],
    ["Scheduled for", message.deliver_at ? timeElement(message.deliver_at) : ""],
    ["Attempts", count(message.attempts)],
    ["Message ID", message.message_id && h("code", null, message.message_id)],
    ["Correlation ID", message.correlation_id && h("code", null, message.correlation_id)],
    ["Reply to", reply && h("a", { class: "name", href: DestinationRef.of(reply).href() }, reply.name)],
    ["Type", message.type],
  ];
  return pairs.filter(([, content]) => content);
}
