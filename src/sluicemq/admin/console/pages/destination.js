// One queue or topic: its statistics, its operations, and tabs for messages, settings and others.

import { get, post, remove } from "../api.js";
import { ask } from "../dialogs.js";
import { h, replaceContent } from "../dom.js";
import { bytes, compact, count, plural, perSecond, duration } from "../format.js";
import { every } from "../live.js";
import { DestinationRef } from "../destination_ref.js";
import { attempt, button, errorElement, head, loading, reading } from "../parts.js";
import { go } from "../router.js";
import { session } from "../session.js";
import { notify } from "../notifications.js";
import { tags } from "./destinations.js";

const REFRESH_MS = 2_000;

const TABS = [
  ["messages", "Messages", () => import("./messages.js")],
  ["publish", "Publish", () => import("./publish.js")],
  ["consumers", "Consumers", () => import("./consumers.js")],
  ["subscriptions", "Subscriptions", () => import("./subscriptions.js")],
  ["charts", "Charts", () => import("./destination_charts.js")],
  ["settings", "Settings", () => import("./destination_settings.js")],
];

function destinationOf({ steps: [kind, name = ""], query }) {
  return DestinationRef.read(kind, name, query);
}

export function title({ steps, query }) {
  const { name } = destinationOf({ steps, query });
  const [, , tab = "messages", id] = steps;
  return id ? `Message ${id} in ${name}` : `${name}: ${tab}`;
}

export function show(where) {
  const place = destinationOf(where);
  const [, , tab = "messages", id] = where.steps;
  if (tab === "messages" && id) {
    const element = h("div", { class: "page" });
    import("./message.js").then((page) => page.fill(element, place, id, where.signal));
    return element;
  }
  return new Destination(place, tab, where).element;
}

class Destination {
  constructor(place, tab, where) {
    this.place = place;
    this.where = where;
    this.item = null;
    this.tags = h("span", { class: "tags" });
    this.actions = h("div", { class: "actions" });
    this.readings = {
      ready: reading("Ready"),
      unacked: reading("Unacked"),
      in: reading("Publish rate", "water"),
      out: reading("Deliver rate", "brass"),
      consumers: reading("Consumers"),
      dead: reading("Dead-lettered"),
    };
    this.figures = h(
      "div",
      { class: "readings across" },
      Object.values(this.readings).map((one) => one.element),
    );
    this.tab = h("div", { class: "tab" });
    const top = head(h("span", { class: "name" }, place.name), { aside: this.tags });
    top.append(this.actions);
    this.element = h("div", { class: "page" }, top, this.figures, this.tabs(tab), this.tab);
    this.look = loading(this.figures, () => this.ask(), where.signal);
    every(REFRESH_MS, () => this.look(), where.signal);
    this.open(tab);
  }

  tabs(current) {
    return h(
      "nav",
      { class: "tabs", "aria-label": "Views of the destination" },
      TABS.filter(([step]) => step !== "subscriptions" || this.place.kind === "topic").map(
        ([step, label]) =>
          h(
            "a",
            { href: this.place.href(`/${step}`), "aria-current": step === current ? "page" : null },
            label,
          ),
      ),
    );
  }

  async open(tab) {
    const [, , load] = TABS.find(([step]) => step === tab) ?? TABS[0];
    try {
      const page = await load();
      if (!this.where.signal.aborted) replaceContent(this.tab, page.show(this.place, this.where.signal, this));
    } catch (error) {
      replaceContent(this.tab, errorElement(error));
    }
  }

  async ask() {
    this.update(await get(this.place.path(), this.place.query(), this.where.signal));
  }

  update(item) {
    const { ready, unacked, consumers } = this.readings;
    ready.set(
      compact(item.ready),
      item.oldest_ms ? `${bytes(item.bytes)}, oldest ${duration(item.oldest_ms)}` : bytes(item.bytes),
    );
    unacked.set(compact(item.unacked), item.scheduled ? `${compact(item.scheduled)} scheduled` : "");
    this.readings.in.set(perSecond(item.publish_rate), `${compact(item.published)} in total`);
    this.readings.out.set(perSecond(item.deliver_rate), `${compact(item.delivered)} in total`);
    consumers.set(
      count(item.consumers),
      item.kind === "topic" ? plural(item.subscriptions, "subscription") : "",
    );
    this.readings.dead.set(
      compact(item.dead_lettered),
      item.expired ? `${compact(item.expired)} expired` : "",
    );
    if (!this.item || this.item.paused !== item.paused) {
      replaceContent(this.tags, tags({ ...item, temporary: item.temporary }));
      replaceContent(this.actions, this.buttons(item));
    }
    this.item = item;
  }

  buttons(item) {
    const manage = session.denialReason("manage", item.name);
    const destroy = session.denialReason("delete", item.name);
    return [
      item.paused
        ? button("Resume", () => this.pause(false), { disabledReason: manage })
        : button("Pause", () => this.pause(true), { disabledReason: manage }),
      button("Purge…", () => this.purge(), { disabledReason: manage }),
      button("Delete…", () => this.destroy(), { disabledReason: destroy, tone: "danger" }),
    ];
  }

  async pause(paused) {
    const message = paused
      ? `Delivery of ${this.place} paused; publishing still works`
      : `Delivery of ${this.place} resumed`;
    await attempt(() => post(this.place.full(paused ? "/pause" : "/resume")), message);
    await this.look();
    this.actions.querySelector("button")?.focus();
  }

  async purge() {
    const { ready, unacked, bytes: size } = this.item;
    const answer = await ask({
      title: `Purge ${this.place}?`,
      text: [
        ready
          ? `${plural(ready, "ready message")} (${bytes(size)}) will be deleted permanently.`
          : "No messages are ready now; messages published before you confirm will be deleted permanently.",
        unacked > 0 &&
          `${plural(unacked, "unacked message")} will be kept.`,
      ].filter(Boolean),
      fields: unacked > 0 ? [{ name: "unacked", label: "Purge unacked messages too", kind: "check" }] : [],
      action: ready ? `Purge ${plural(ready, "message")}` : "Purge",
      tone: "danger",
      submit: ({ unacked: too = false }) => post(this.place.full("/purge"), { unacked: too }),
    });
    if (!answer) return;
    notify(`${plural(answer.purged, "message")} purged`);
    this.look();
  }

  async destroy() {
    const { ready, unacked, consumers, bytes: size } = this.item;
    const losses = [
      ready + unacked > 0 && `${plural(ready + unacked, "message")} (${bytes(size)})`,
      consumers > 0 && plural(consumers, "consumer"),
    ].filter(Boolean);
    const done = await ask({
      title: `Delete ${this.place}?`,
      text: [
        losses.length
          ? `This permanently removes ${losses.join(" and ")}.`
          : "It has no messages and no consumers.",
        "Its settings are deleted. If automatic creation is allowed, it is created again with default settings when it is next used.",
      ],
      action: "Delete",
      tone: "danger",
      submit: () => remove(this.place.path(), this.place.query({ force: consumers ? "true" : "" })),
    });
    if (!done) return;
    notify(`${this.place} deleted`);
    go("#/destinations");
  }
}
