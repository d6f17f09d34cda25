// One message: headers, properties and body.

import { deleteMessages, redeliverMessages, returnMessages, transferMessages } from "../actions.js";
import { address, get } from "../api.js";
import { bodyView, value } from "../body.js";
import { h, replaceContent } from "../dom.js";
import { bytes, count } from "../format.js";
import { DestinationRef } from "../destination_ref.js";
import { button, emptyState, valueList, head, loading, panel, badge, timeElement } from "../parts.js";
import { go, currentRoute } from "../router.js";
import { session } from "../session.js";

const MAX_BODY = 262_144;

/** Show a message in the element of a page. */
export function fill(element, place, id, signal) {
  const subscription = currentRoute().query.get("subscription") ?? "";
  const back = h("a", { href: place.href("/messages") }, place.name);
  const content = h("div", { class: "page" });
  const actions = h("div", { class: "actions" });
  const top = head(`Message ${id}`, {
    aside: h("p", { class: "about" }, "In ", h("span", { class: "name" }, back)),
  });
  top.append(actions);
  replaceContent(element, top, content);
  const path = `/messages/${encodeURIComponent(id)}`;
  loading(
    content,
    async () => {
      const query = place.query({ max_body_bytes: MAX_BODY, subscription });
      const message = await get(place.path(path), query, signal);
      replaceContent(actions, tools(place, message));
      replaceContent(content, view(place, path, message));
    },
    signal,
  )();
}

function tools(place, message) {
  const which = {
    ids: [message.id],
    ...(message.subscription && { subscription: message.subscription }),
  };
  const what = `message ${message.id}`;
  const consume = session.denialReason("consume", place.name);
  const leaving = (action) => async () => {
    if (await action(place, what, which)) go(place.href("/messages"));
  };
  const move = (target, ...rest) => transferMessages(target, "move", ...rest);
  const held = message.state === "unacked" ? "a consumer has it unacked" : "";
  return [
    message.dead_letter &&
      button("Redrive…", leaving(returnMessages), { disabledReason: consume || held, tone: "primary" }),
    button("Move…", leaving(move), { disabledReason: consume || held }),
    button("Copy…", () => transferMessages(place, "copy", what, which), {
      disabledReason: session.denialReason("browse", place.name),
    }),
    message.state !== "ready" &&
      button("Redeliver…", leaving(redeliverMessages), { disabledReason: consume }),
    button("Delete…", leaving(deleteMessages), { disabledReason: consume, tone: "danger" }),
  ];
}

function view(place, path, message) {
  const { body, properties = {} } = message;
  const raw = address(
    place.path(`${path}/body`),
    place.query({ subscription: message.subscription }),
  );
  const download = h(
    "a",
    { href: raw, download: `message-${message.id}` },
    `Download, ${bytes(message.size)}`,
  );
  const named = Object.entries(properties);
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
      { class: "duo" },
      panel("Headers", valueList(headers(message))),
      panel(
        "Properties",
        named.length
          ? valueList(named.map(([name, typed]) => [h("code", null, name), value(typed)]))
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
