// Jobs: the list of all, their progress, and cancelling.

import { events, get, remove } from "./api.js";
import { chainLink } from "./chains.js";
import { badge, empty, h } from "./dom.js";
import { duration, moment } from "./format.js";
import { attempt, confirmed } from "./notices.js";

const STATES = { succeeded: "good", failed: "bad", cancelled: "warn" };
const STREAMS_MOST = 2; // a browser opens six connections to a server, and the page needs some itself

const KINDS = {
  fit: "Fit of a chain",
  adapt: "Adaptation to searches",
  train: "Training of an encoder",
  advise: "Advice",
  reindex: "Reindexing",
  checkup: "Checkup of an index",
  migrate: "Comparison of encoders",
};

/** Return the name of a job's kind. */
export function kindOf({ kind }) {
  return KINDS[kind] ?? `Job of kind ${kind}`;
}

/** Return whether a job will not change any more. */
export function hasEnded(job) {
  return ["succeeded", "failed", "cancelled"].includes(job.state);
}

/** Create the badge of a job's state. */
export function stateBadge(job) {
  return badge(job.state, STATES[job.state]);
}

/** Say when a job started, and how long it has been running or ran. */
export function timeSentence(job) {
  const end = job.finished_at ? new Date(job.finished_at) : new Date();
  const length = duration((end - new Date(job.created_at)) / 1000);
  if (hasEnded(job)) {
    return `Queued at ${moment(job.created_at)}, ended after ${length}.`;
  }
  return `Queued at ${moment(job.created_at)}, ${job.state === "queued" ? "waiting" : "running"} for ${length}.`;
}

/** Create the progress bar of a job, with its percentage. */
export function progressBar(job) {
  const share = `${Math.round(100 * job.progress)} %`;
  return h(
    "div",
    { class: "progress" },
    h("progress", { max: "1", value: String(job.progress), "aria-label": `Progress of job ${job.id}` }, share),
    h("span", { class: "number" }, share),
  );
}

/** Create the button that cancels a job; null for a job that has ended. */
export function cancelButton(job, page) {
  if (hasEnded(job)) {
    return null;
  }
  const cancel = async () => {
    const wanted = await confirmed({
      title: "Cancel the job?",
      text: `The job ${job.id} stops. What it has done so far is lost, except for the checkpoints of a training.`,
      yes: "Cancel the job",
    });
    if (wanted) {
      await attempt(() => remove(`jobs/${encodeURIComponent(job.id)}`), sayCancelled);
      await page.refresh();
    }
  };
  return h("button", { type: "button", id: `cancel-${job.id}`, onclick: cancel }, "Cancel");
}

function sayCancelled(job) {
  return ["succeeded", "failed"].includes(job.state)
    ? `The job ${job.id} had already ended (${job.state}), so nothing was cancelled.`
    : `The job ${job.id} is cancelled.`;
}

/** Show a job each time it changes, by its events, until the page is left. */
export async function follow(id, page, merged) {
  try {
    for await (const job of events(`jobs/${encodeURIComponent(id)}/events`, page.signal)) {
      page.show(merged(job));
    }
  } catch (error) {
    if (!page.signal.aborted) {
      console.info(`the events of job ${id} ended: ${error.message}`); // the page polls every few seconds too
    }
  }
}

/** The page of all jobs. Running ones are followed by their events. */
export const jobsView = {
  title: () => "Jobs",
  every: 4000,
  load: (_args, options) => get("jobs", options),
  draw(jobs, page) {
    const start = h("p", { class: "buttons" }, h("a", { class: "button main", href: "#/fit" }, "Start a job"));
    if (jobs.length === 0) {
      return empty(
        h("p", {}, "No job has been started yet. Fits, adaptations, trainings, advice and reindexing are jobs."),
        start,
      );
    }
    return [
      start,
      h(
        "ul",
        { class: "list" },
        jobs.map((job) => jobCard(job, page)),
      ),
    ];
  },
  enter(page) {
    const running = (page.data ?? []).filter((job) => !hasEnded(job)).slice(0, STREAMS_MOST);
    running.forEach((job) => follow(job.id, page, (told) => page.data.map((one) => (one.id === told.id ? told : one))));
  },
};

/** Create a job as an entry of a list. */
export function jobCard(job, page) {
  return h(
    "li",
    { class: "card job", id: `job-${job.id}` },
    h(
      "div",
      {},
      h("a", { href: `#/jobs/${job.id}` }, h("strong", {}, kindOf(job))),
      " ",
      stateBadge(job),
      h("div", { class: "hint" }, job.id),
    ),
    h(
      "div",
      {},
      hasEnded(job) ? null : progressBar(job),
      job.error ? h("div", { class: "wrong" }, job.error) : h("div", {}, outcomeOf(job)),
    ),
    h("div", { class: "hint" }, timeSentence(job)),
    h("div", {}, cancelButton(job, page)),
  );
}

/** Say in a line what a job made or is doing. */
function outcomeOf({ state, message, result }) {
  const [chain, encoder] = [result?.chain, result?.encoder];
  if (result?.sentence ?? result?.summary) {
    return result.sentence ?? result.summary;
  }
  if (typeof chain === "string") {
    return ["Made ", chainLink(chain), result.promoted ? ", which is live." : ", which is not live."];
  }
  if (typeof encoder === "string" && "promoted" in result) {
    return `Made ${encoder}, which is ${result.promoted ? "" : "not "}live.`;
  }
  return state === "succeeded" ? "Done." : message;
}
