// Frame around all pages: top bar, navigation, and state of the broker.

import { remove } from "./api.js";
import { h, replaceContent, s, setText } from "./dom.js";
import { compact } from "./format.js";
import { showShortcuts, enableShortcuts } from "./keys.js";
import { live, reconnect, watch, watchState } from "./live.js";
import { entry, visiblePages } from "./navigation.js";
import { Search } from "./search.js";
import { session } from "./session.js";
import { notify, notificationAreas, announce } from "./notifications.js";

const STATES = {
  connecting: ["wait", "Connecting"],
  live: ["good", "Live"],
  disconnected: ["bad", "Not connected"],
};

/** Return the logo. */
export function logo() {
  return s(
    "svg",
    { class: "logo", viewBox: "0 0 24 24", "aria-hidden": "true" },
    s("path", { d: "M3 2v20M21 2v20", class: "posts" }),
    s("path", { d: "M6.5 4h11v8h-11zM6.5 8h11", class: "gate" }),
    s("path", { d: "M6 16q1.5-1.6 3 0t3 0 3 0 3 0M6 20q1.5-1.6 3 0t3 0 3 0 3 0", class: "waves" }),
  );
}

const systemTheme = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : systemTheme.matches;
}

function toggleTheme() {
  const dark = !isDark();
  const theme = dark ? "dark" : "light";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("sluicemq.theme", theme);
  } catch {
    // without storage, the choice lasts until the page is closed
  }
  announce(`Dark mode ${dark ? "on" : "off"}`);
}

export class Shell {
  constructor(onLogout) {
    this.search = new Search();
    this.status = h("span", { class: "broker-status" }, h("i", { "aria-hidden": "true" }), h("span"));
    this.main = h("main", { id: "main", tabindex: "-1" });
    this.pages = h("ul");
    this.nav = h(
      "nav",
      { class: "sidebar", id: "pages", "aria-label": "Pages" },
      this.pages,
      this.footer(onLogout),
    );
    this.banner = h("div", { class: "banner", role: "alert" });
    this.menu = h(
      "button",
      { type: "button", class: "menu", "aria-expanded": "false", "aria-controls": "pages" },
      "Menu",
    );
    this.menu.addEventListener("click", () => this.setMenuOpen(this.menu.ariaExpanded !== "true"));
    const skip = h("a", { class: "skip", href: "#main" }, "Skip to the page");
    skip.addEventListener("click", (event) => {
      event.preventDefault();
      this.main.focus();
    });
    this.element = h(
      "div",
      { class: "frame" },
      skip,
      h(
        "header",
        { class: "bar" },
        this.menu,
        h("a", { class: "brand", href: "#/" }, logo(), h("span", null, "SluiceMQ")),
        this.search.element,
        this.status,
      ),
      this.nav,
      h("div", { class: "content" }, this.banner, this.main),
      notificationAreas(),
    );
    enableShortcuts({ search: () => this.search.focus(), theme: () => this.toggleTheme() });
    systemTheme.addEventListener("change", () => this.showTheme());
    watchState((state) => this.showState(state));
    watch((overview) => this.showCounts(overview));
    this.showState(live.state);
  }

  footer(onLogout) {
    this.user = h("a", { class: "user", href: "#/account" });
    this.logoutButton = h("button", { type: "button", class: "quiet" }, "Log out");
    this.logoutButton.addEventListener("click", async () => {
      try {
        await remove("session");
        session.notifyTabs();
      } catch (error) {
        // the session still exists, and the login page would hide that; without a session it is open
        if (error.status !== 401) notify(`You are still logged in: ${error.message}`, "bad");
        return;
      }
      onLogout();
    });
    this.theme = h(
      "button",
      { type: "button", class: "quiet", onclick: () => this.toggleTheme() },
      "Dark mode",
    );
    this.showTheme();
    return h(
      "div",
      { class: "sidebar-foot" },
      this.theme,
      h("button", { type: "button", class: "quiet", onclick: showShortcuts }, "Keys ", h("kbd", null, "?")),
      this.user,
      this.logoutButton,
    );
  }

  toggleTheme() {
    toggleTheme();
    this.showTheme();
  }

  showTheme() {
    this.theme.setAttribute("aria-pressed", String(isDark()));
  }

  /** Show the pages that the user may see. */
  showUser() {
    this.links = visiblePages().map((page) => {
      const countElement = h("span", { class: "sidebar-count" });
      const link = h("a", { href: `#/${page.step}` }, h("span", null, page.label), countElement);
      return { page, link, countElement };
    });
    replaceContent(
      this.pages,
      this.links.map(({ link }) => h("li", null, link)),
    );
    setText(this.user, session.user);
    this.user.hidden = this.logoutButton.hidden = !session.user;
  }

  /** Mark the current page in the navigation. */
  markPage(step) {
    for (const { page, link } of this.links) {
      if (page.step === entry(step)) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    this.setMenuOpen(false);
  }

  setMenuOpen(open) {
    this.menu.setAttribute("aria-expanded", String(open));
    this.nav.classList.toggle("open", open);
  }

  showCounts(overview) {
    const { totals } = overview;
    const figures = { destinations: totals.destinations, connections: totals.connections };
    for (const { page, countElement } of this.links ?? []) {
      if (page.step in figures) setText(countElement, compact(figures[page.step]));
    }
  }

  showState(state) {
    const [tone, text] = STATES[state];
    this.status.className = `broker-status ${tone}`;
    setText(this.status.lastChild, text);
    if (state === "disconnected") {
      const retryButton = h("button", { type: "button", onclick: reconnect }, "Try now");
      replaceContent(
        this.banner,
        h(
          "p",
          null,
          "The broker does not respond. The last known values are displayed; the console reconnects every few seconds.",
        ),
        retryButton,
      );
    } else if (this.banner.firstChild) {
      replaceContent(this.banner);
      if (state === "live") notify("Reconnected to the broker");
    }
  }
}
