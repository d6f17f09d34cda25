// Search for pages and destinations by a part of their name. A combobox: the arrow keys select from
// the list of results while the text field keeps the focus.

import { isAborted, get } from "./api.js";
import { h, replaceContent, uniqueId } from "./dom.js";
import { compact } from "./format.js";
import { DestinationRef } from "./destination_ref.js";
import { visiblePages } from "./navigation.js";
import { go } from "./router.js";

/** Delay of the request after the last key, in ms. */
const INPUT_DELAY_MS = 120;
const MAX_RESULTS = 8;

export class Search {
  constructor() {
    this.results = [];
    this.activeIndex = -1;
    this.request = null;
    this.timer = 0;
    const name = uniqueId("found");
    this.list = h("ul", {
      id: name,
      role: "listbox",
      class: "search-results",
      "aria-label": "Found",
      hidden: true,
    });
    this.input = h("input", {
      type: "search",
      role: "combobox",
      placeholder: "Search destinations and pages",
      autocomplete: "off",
      spellcheck: "false",
      "aria-label": "Search destinations and pages",
      "aria-expanded": "false",
      "aria-controls": name,
      "aria-autocomplete": "list",
      "aria-keyshortcuts": "/",
    });
    this.element = h(
      "div",
      { class: "search", role: "search" },
      this.input,
      h("kbd", { "aria-hidden": "true" }, "/"),
      this.list,
    );
    this.input.addEventListener("input", () => this.scheduleLoad());
    this.input.addEventListener("focus", () => this.scheduleLoad());
    this.input.addEventListener("keydown", (event) => this.handleKey(event));
    this.input.addEventListener("blur", () => this.close());
  }

  focus() {
    this.input.focus();
    this.input.select();
  }

  scheduleLoad() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), INPUT_DELAY_MS);
  }

  async load() {
    this.request?.abort();
    const text = this.input.value.trim();
    if (!text) {
      this.close();
      return;
    }
    const request = new AbortController();
    this.request = request;
    const term = text.toLowerCase();
    const pages = visiblePages()
      .filter(({ label }) => label.toLowerCase().includes(term))
      .map(({ label, step }) => ({ label, note: "page", hash: `#/${step}` }));
    let destinations = [];
    try {
      const query = { filter: text, limit: MAX_RESULTS, sort: "name" };
      const { items } = await get("destinations", query, request.signal);
      destinations = items.map((item) => ({
        label: item.name,
        note: `${item.kind}, ${compact(item.ready)} ready`,
        hash: DestinationRef.of(item).href(),
        name: true,
      }));
    } catch (error) {
      if (isAborted(error)) return;
    }
    if (document.activeElement !== this.input) return;
    const all = {
      label: `All destinations with “${text}”`,
      note: "list",
      hash: `#/destinations?${new URLSearchParams({ filter: text })}`,
    };
    this.open([...destinations, ...pages, all]);
  }

  open(results) {
    this.results = results;
    this.activeIndex = -1;
    replaceContent(
      this.list,
      results.map((result, index) =>
        h(
          "li",
          {
            id: `${this.list.id}-${index}`,
            role: "option",
            "aria-selected": "false",
            // before the input loses the focus
            onpointerdown: (event) => {
              event.preventDefault();
              this.select(index);
            },
          },
          h("span", { class: result.name ? "name" : "" }, result.label),
          h("small", null, result.note),
        ),
      ),
    );
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
  }

  close() {
    clearTimeout(this.timer);
    this.request?.abort();
    this.results = [];
    this.activeIndex = -1;
    this.list.hidden = true;
    replaceContent(this.list);
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  activate(index) {
    const options = [...this.list.children];
    options[this.activeIndex]?.setAttribute("aria-selected", "false");
    this.activeIndex = (index + options.length) % options.length;
    options[this.activeIndex].setAttribute("aria-selected", "true");
    options[this.activeIndex].scrollIntoView({ block: "nearest" });
    this.input.setAttribute("aria-activedescendant", options[this.activeIndex].id);
  }

  select(index) {
    const { hash } = this.results[index];
    this.input.value = "";
    this.input.blur();
    go(hash);
  }

  handleKey(event) {
    if (event.key === "Escape") {
      this.input.value = "";
      this.input.blur();
    } else if (event.key === "Enter") {
      const text = this.input.value.trim();
      if (this.activeIndex >= 0) this.select(this.activeIndex);
      else if (text) {
        this.input.value = "";
        this.input.blur();
        go(`#/destinations?${new URLSearchParams({ filter: text })}`);
      }
    } else if (this.results.length && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      const down = event.key === "ArrowDown";
      this.activate(this.activeIndex < 0 && !down ? this.results.length - 1 : this.activeIndex + (down ? 1 : -1));
    }
  }
}
