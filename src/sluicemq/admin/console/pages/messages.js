// Messages of a destination: all of them, or those that match a selector, page by page.

import { deleteMessages, redeliverMessages, returnMessages, transferMessages } from "../actions.js";
import { get } from "../api.js";
import { preview } from "../body.js";
import { receiveCommand, sendCommand } from "../commands.js";
import { h, replaceContent, setText } from "../dom.js";
import { count, plural } from "../format.js";
import { field } from "../fields.js";
import { every, live } from "../live.js";
import { button, command, emptyState, loading, panel } from "../parts.js";
import { currentRoute, storeQuery } from "../router.js";
import { session } from "../session.js";
import { announce } from "../notifications.js";
import { messageTable } from "./message_table.js";

const SIZE = 50;
const REFRESH_MS = 4_000;

const STATES = [
  ["ready", "ready"],
  ["unacked", "unacked"],
  ["scheduled", "scheduled"],
];

export function show(place, signal) {
  return new Messages(place, signal).element;
}

class Messages {
  constructor(place, signal) {
    this.place = place;
    this.signal = signal;
    const { query } = currentRoute();
    this.state = query.get("state") ?? "ready";
    this.selector = query.get("selector") ?? "";
    this.subscription = query.get("subscription") ?? "";
    this.offset = Math.max(0, Number.parseInt(query.get("offset") ?? "0", 10) || 0);
    /** Cursors of the pages before this one, if there is a selector. */
    this.cursors = [null];
    this.chosen = new Set();
    this.items = [];
    /** True if the previews of some messages have not been loaded. */
    this.hasMissingPreviews = true;
    /** Previews of bodies by message id; each is requested once. */
    this.previews = new Map();
    this.table = messageTable(this);
    this.bar = h("div", { class: "actions" });
    this.foot = h("div", { class: "pager" });
    this.emptyState = h("div", { hidden: true });
    this.content = h("div", null, this.table.element, this.foot, this.emptyState);
    this.rows = h("div", null, this.content);
    this.look = loading(this.rows, () => this.ask(), signal);
    this.element = panel(null, [this.filters(), this.bar, this.rows]);
    this.tools();
    every(REFRESH_MS, () => this.look(), signal);
  }

  filters() {
    const form = h(
      "form",
      { class: "filters" },
      field({
        name: "state",
        key: "",
        label: "State",
        kind: "choice",
        options: STATES,
        value: this.state,
      }),
      this.place.kind === "topic" && (this.chooser = h("div", { class: "field" })),
      h(
        "div",
        { class: "grow field" },
        field({
          name: "selector",
          key: "",
          label: "Selector",
          value: this.selector,
          placeholder: "color = 'red' AND JMSPriority > 4",
        }),
      ),
      h("button", { type: "submit" }, "Select"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.restart(form);
    });
    form.elements.state.addEventListener("change", () => this.restart(form));
    if (this.chooser) this.choose(form);
    return form;
  }

  /** Show the subscriptions of a topic, by which its messages are listed. */
  async choose(form) {
    const query = { ...this.place.filterQuery(), limit: 500 };
    const { items } = await get("subscriptions", query, this.signal).catch(() => ({ items: [] }));
    const options = items.map(({ name, display_name: label, client_id: client }) => [
      name,
      client ? `${label}, client ${client}` : label,
    ]);
    if (!options.some(([name]) => name === this.subscription)) this.subscription = "";
    // a topic without subscriptions may retain messages for the first one
    if (!options.length) options.push(["", "none yet"]);
    else if (!this.subscription) [[this.subscription]] = options;
    replaceContent(
      this.chooser,
      field({
        name: "subscription",
        key: "",
        label: "Subscription",
        kind: "choice",
        options,
        value: this.subscription,
      }),
    );
    form.elements.subscription.addEventListener("change", () => this.restart(form));
    this.look();
  }

  restart(form) {
    this.state = form.elements.state.value;
    this.selector = form.elements.selector.value.trim();
    this.subscription = form.elements.subscription?.value ?? "";
    this.offset = 0;
    this.cursors = [null];
    this.chosen.clear();
    this.keep();
    this.look().then(() => announce(this.foot.firstChild?.textContent || "No messages"));
  }

  keep() {
    storeQuery({
      state: this.state === "ready" ? "" : this.state,
      selector: this.selector,
      subscription: this.subscription,
      offset: this.offset || "",
    });
  }

  async ask() {
    const cursor = this.selector ? this.cursors.at(-1) : null;
    const answer = await get(
      this.place.path("/messages"),
      this.place.query({
        state: this.state,
        selector: this.selector,
        subscription: this.subscription,
        limit: SIZE,
        body: this.hasMissingPreviews ? "true" : "",
        ...(this.selector ? cursor && { cursor } : { offset: this.offset || "" }),
      }),
      this.signal,
    );
    this.answer = answer;
    this.items = answer.items;
    for (const { id, body } of answer.items) if (body) this.previews.set(id, preview(body));
    const hasMissingPreviews = answer.items.some(({ id }) => !this.previews.has(id));
    if (hasMissingPreviews && !this.hasMissingPreviews) {
      this.hasMissingPreviews = true;
      await this.ask();
      return;
    }
    this.hasMissingPreviews = false;
    const there = new Set(answer.items.map(({ id }) => id));
    for (const id of this.chosen) if (!there.has(id)) this.chosen.delete(id);
    this.table.update(answer.items);
    this.table.element.hidden = answer.items.length === 0;
    replaceContent(this.emptyState, answer.items.length === 0 && this.none());
    this.emptyState.hidden = answer.items.length > 0;
    this.pages(answer);
    this.tools();
    if (this.rows.firstChild !== this.content) replaceContent(this.rows, this.content);
  }

  pages({ items, total, next_cursor: next }) {
    const from = this.selector
      ? ""
      : `${count(this.offset + 1)} to ${count(this.offset + items.length)} of ${count(total)}`;
    const looked = this.selector ? `${plural(items.length, "message")} found on this page` : from;
    const back = this.selector ? this.cursors.length > 1 : this.offset > 0;
    const on = this.selector ? Boolean(next) : this.offset + items.length < total;
    const state = JSON.stringify([looked, back, on, next]);
    if (state === this.paged) return;
    this.paged = state;
    const focused = document.activeElement?.textContent;
    replaceContent(
      this.foot,
      h("span", { class: "pager-text" }, items.length || this.selector ? looked : ""),
      !this.selector && total > SIZE && this.jump(total),
      (back || on) && [
        pageButton("Previous", back, () => this.turn(-1)),
        pageButton("Next", on, () => this.turn(1)),
      ],
    );
    const again = [...this.foot.querySelectorAll("button")].find(
      (one) => one.textContent === focused,
    );
    if (again && document.activeElement === document.body) again.focus();
  }

  jump(total) {
    const input = h("input", {
      type: "number",
      min: 1,
      max: total,
      "aria-label": "Position to go to",
      placeholder: "position",
    });
    const form = h("form", { class: "pair" }, input, h("button", { type: "submit" }, "Go to"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!input.value) return;
      this.offset = Math.min(total, Math.max(1, Number(input.value))) - 1;
      this.moved();
    });
    return form;
  }

  turn(step) {
    if (!this.selector) this.offset = Math.max(0, this.offset + step * SIZE);
    else if (step > 0) this.cursors.push(this.answer.next_cursor);
    else this.cursors.pop();
    this.moved();
  }

  async moved() {
    this.chosen.clear();
    this.keep();
    await this.look();
    announce(this.foot.firstChild?.textContent ?? "");
  }

  /** Return the messages that the buttons apply to: the selected ones, or all of the list. */
  scope() {
    const more = { ...(this.subscription && { subscription: this.subscription }) };
    if (this.chosen.size)
      return [plural(this.chosen.size, "message"), { ids: [...this.chosen], ...more }];
    const state = this.state === "unacked" ? {} : { state: this.state };
    if (this.selector)
      return ["all matching messages", { selector: this.selector, ...state, ...more }];
    return ["all messages", { all: true, ...state, ...more }];
  }

  tools() {
    const some = this.chosen.size ? `${count(this.chosen.size)}` : "all";
    const nothing = !this.items.length && "the list is empty";
    const inFlight = this.state === "unacked" && !this.chosen.size && "choose messages first";
    const consume = session.denialReason("consume", this.place.name);
    const browse = session.denialReason("browse", this.place.name);
    const destroy =
      this.chosen.size || this.selector ? consume : session.denialReason("manage", this.place.name);
    const dead = this.place.name.endsWith(".dlq");
    const state = JSON.stringify([some, nothing, inFlight, destroy]);
    if (state === this.tooled) return;
    this.tooled = state;
    const doing = (action) => async () => {
      const [what, which] = this.scope();
      if (await action(this.place, what, which)) {
        this.chosen.clear();
        await this.look();
      }
    };
    const tool = (label, action, disabledReason, tone = "") =>
      button(`${label} ${some}…`, doing(action), { disabledReason: disabledReason || nothing || inFlight, tone });
    replaceContent(this.bar, [
      dead && tool("Redrive", returnMessages, consume),
      tool("Move", (place, ...rest) => transferMessages(place, "move", ...rest), consume),
      tool("Copy", (place, ...rest) => transferMessages(place, "copy", ...rest), browse),
      this.state !== "ready" && tool("Redeliver", redeliverMessages, consume),
      tool("Delete", deleteMessages, destroy, "danger"),
    ]);
  }

  none() {
    if (this.selector) {
      return emptyState(
        this.answer.next_cursor ? "No matches so far" : "No matching messages",
        h(
          "p",
          null,
          this.answer.next_cursor
            ? "The broker examines a limited number of messages per request; select Next to continue."
            : "A selector is a condition on headers and properties, as in JMS: color = 'red' AND size > 10.",
        ),
      );
    }
    if (this.state !== "ready") return emptyState(`No ${STATES.find(([state]) => state === this.state)?.[1] ?? ""} messages`);
    const listeners = live.overview?.listeners;
    const back = receiveCommand(listeners, this.place.name);
    if (this.place.kind === "topic") {
      return emptyState(
        "No ready messages",
        h(
          "p",
          null,
          "Each subscription keeps a published message until it is acknowledged; without subscriptions the message is discarded.",
        ),
      );
    }
    return emptyState(
      "No ready messages",
      h("p", null, "Publish a message on the Publish tab or in a terminal:"),
      command(sendCommand(listeners, this.place.name)),
      back && command(back),
    );
  }
}

function pageButton(label, usable, onclick) {
  return h("button", { type: "button", disabled: !usable, onclick }, label);
}
