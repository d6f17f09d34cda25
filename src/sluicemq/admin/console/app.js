// Entry point: loads the session, then shows the page of each address.

import { ApiError, get } from "./api.js";
import { h, replaceContent } from "./dom.js";
import { start, stop, take } from "./live.js";
import { errorElement } from "./parts.js";
import { loader } from "./navigation.js";
import { currentRoute } from "./router.js";
import { session } from "./session.js";
import { Shell } from "./shell.js";
import { announce } from "./notifications.js";

let shell = null;
let leaving = new AbortController();
let turns = 0;
/** Whether the login page is open. */
let loggedOut = false;

async function begin() {
  // requested together, because the overview, the first page of most users, needs both
  const first = currentRoute().steps.length === 0 ? get("overview").catch(() => null) : null;
  try {
    session.take(await get("session"));
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return; // `lost` opens the login page
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
  await enter(await first);
}

async function enter(overview = null) {
  loggedOut = false;
  shell ??= new Shell(() => session.lost(null));
  replaceContent(document.body, shell.element);
  shell.welcome();
  start();
  if (overview) take(overview);
  await turn(false);
}

async function login(reason) {
  if (loggedOut) return;
  loggedOut = true;
  leaving.abort();
  stop();
  const { show } = await import("./pages/login.js");
  show(reason, enter);
}

/** Show the page of the address. `moved`: the user has come from another page. */
async function turn(moved = true) {
  if (!session.known) return;
  leaving.abort();
  leaving = new AbortController();
  turns += 1;
  const mine = turns;
  const place = { ...currentRoute(), signal: leaving.signal };
  const load = loader(place.steps[0]);
  shell.mark(place.steps[0] ?? "");
  let page;
  try {
    page = load ? await load() : await import("./pages/not_found.js");
  } catch {
    // after an upgrade of the broker, its files have other addresses
    if (mine === turns) {
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
  if (mine !== turns) return;
  replaceContent(shell.main, page.show(place));
  const title = page.title(place);
  document.title = `${title} · SluiceMQ`;
  if (moved) {
    window.scrollTo(0, 0);
    const heading = shell.main.querySelector("h1");
    (heading ?? shell.main).focus({ preventScroll: true });
    announce(title);
  }
}

session.onLost(login);
addEventListener("hashchange", () => turn());
begin();
