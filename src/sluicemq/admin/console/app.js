// Entry point: loads the session, then shows the page of each route.

import { ApiError, get } from "./api.js";
import { h, replaceContent } from "./dom.js";
import { start, stop, setOverview } from "./live.js";
import { errorElement } from "./parts.js";
import { loader } from "./navigation.js";
import { currentRoute } from "./router.js";
import { session } from "./session.js";
import { Shell } from "./shell.js";
import { announce } from "./notifications.js";

let shell = null;
let pageLifetime = new AbortController();
let navigations = 0;
/** True while the login page is open. */
let isLoginOpen = false;

async function loadSession() {
  // requested together, because the overview, the first page of most users, needs both
  const first = currentRoute().steps.length === 0 ? get("overview").catch(() => null) : null;
  try {
    session.set(await get("session"));
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return; // `end` opens the login page
    replaceContent(
      document.body,
      h(
        "main",
        { class: "alone" },
        errorElement(error, () => location.reload()),
      ),
    );
    return;
  }
  await openConsole(await first);
}

async function openConsole(overview = null) {
  isLoginOpen = false;
  shell ??= new Shell(() => session.end(null));
  replaceContent(document.body, shell.element);
  shell.showUser();
  start();
  if (overview) setOverview(overview);
  await showPage(false);
}

async function openLogin(reason) {
  if (isLoginOpen) return;
  isLoginOpen = true;
  pageLifetime.abort();
  stop();
  const { show } = await import("./pages/login.js");
  show(reason, openConsole);
}

/** Show the page of the current route. `isNavigation`: the user comes from another page. */
async function showPage(isNavigation = true) {
  if (!session.known) return;
  pageLifetime.abort();
  pageLifetime = new AbortController();
  navigations += 1;
  const navigation = navigations;
  const route = { ...currentRoute(), signal: pageLifetime.signal };
  const loadPage = loader(route.steps[0]);
  shell.markPage(route.steps[0] ?? "");
  let page;
  try {
    page = loadPage ? await loadPage() : await import("./pages/not_found.js");
  } catch {
    // after an upgrade of the broker, its files have other addresses
    if (navigation === navigations) {
      const missing = new ApiError(
        0,
        "no-page",
        "This page is not available: the broker may have been updated. Reload the console.",
      );
      replaceContent(
        shell.main,
        errorElement(missing, () => location.reload()),
      );
    }
    return;
  }
  if (navigation !== navigations) return;
  // such as after the Back button; a dialog belongs to the previous page
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  replaceContent(shell.main, page.show(route));
  const title = page.title(route);
  document.title = `${title} · SluiceMQ`;
  if (isNavigation) {
    window.scrollTo(0, 0);
    const heading = shell.main.querySelector("h1");
    (heading ?? shell.main).focus({ preventScroll: true });
    announce(title);
  }
}

/** Adopt the session of a login in another tab; the login page opens after a logout there. */
async function adoptSession() {
  const previous = session.known ? session.user : null;
  try {
    session.set(await get("session"));
  } catch {
    return;
  }
  if (session.user === previous) return;
  stop();
  await openConsole();
}

session.onEnd(openLogin);
session.onReplaced(adoptSession);
addEventListener("hashchange", () => showPage());
loadSession();
