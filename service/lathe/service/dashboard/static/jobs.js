// Jobs: how far they are, what went wrong, what they made; and stopping them.

import { events, get, remove } from "./api.js";
import { figureCards, rowsSentence, warningList } from "./certificate.js";
import { chainLink } from "./chains.js";
import { badge, empty, h, scroller, section } from "./dom.js";
import { saveButton } from "./download.js";
import { duration, moment } from "./format.js";
import { attempt, confirmed } from "./notices.js";

const KINDS = { succeeded: "good", failed: "bad", cancelled: "warn" };
const STREAMS_MOST = 2; // a browser opens six connections to a server, and the page needs some itself

/** Whether a job will not change any more. */
function hasEnded(job) {
  return ["succeeded", "failed", "cancelled"].includes(job.state);
}

/** The page of all jobs; those that run are followed by their events. */
export const jobsView = {
  title: () => "Jobs",
  every: 4000,
  load: (_args, options) => get("jobs", options),
  draw(jobs, page) {
    if (jobs.length === 0) {
      return empty(
        h("p", {}, "No job was started yet: fits, advice and making indexes anew are jobs."),
        h("a", { class: "button", href: "#/fit" }, "Fit a chain"),
      );
    }
    return h(
      "ul",
      { class: "list" },
      jobs.map((job) => row(job, page)),
    );
  },
  enter(page) {
    const running = (page.data ?? []).filter((job) => !hasEnded(job)).slice(0, STREAMS_MOST);
    running.forEach((job) => follow(job.id, page, (told) => page.data.map((one) => (one.id === told.id ? told : one))));
  },
};

/** The page of one job. */
export const jobView = {
  title: ([id]) => `Job ${id}`,
  every: 4000,
  load: ([id], options) => get(`jobs/${encodeURIComponent(id)}`, options),
  draw(job, page) {
    return [
      section(
        job.kind === "fit" ? "A fit" : `A job of kind ${job.kind}`,
        h("p", {}, badge(job.state, KINDS[job.state]), ` begun ${moment(job.created_at)}, took ${took(job)}`),
        h("p", {}, progressBar(job), " ", h("span", { id: "job-message" }, job.message)),
        job.error ? h("p", { class: "notice bad" }, job.error) : null,
        hasEnded(job) ? null : h("p", { class: "buttons" }, cancelButton(job, page)),
      ),
      job.result ? outcome(job) : null,
      h("p", {}, h("a", { href: "#/jobs" }, "All jobs")),
    ];
  },
  enter(page) {
    if (page.data && !hasEnded(page.data)) {
      follow(page.data.id, page, (told) => told);
    }
  },
};

/** A job in the list of all. */
function row(job, page) {
  const made = job.result?.chain ? [" made ", chainLink(job.result.chain)] : null;
  return h(
    "li",
    { class: "card job" },
    h(
      "div",
      {},
      h("a", { href: `#/jobs/${job.id}` }, h("strong", {}, job.kind)),
      " ",
      badge(job.state, KINDS[job.state]),
      made,
      h("div", { class: "hint" }, job.id),
    ),
    h(
      "div",
      {},
      hasEnded(job) ? null : progressBar(job),
      h("div", { class: job.error ? "wrong" : null }, job.error ?? job.message),
    ),
    h("div", { class: "hint" }, `begun ${moment(job.created_at)}`, hasEnded(job) ? `, took ${took(job)}` : null),
    h("div", {}, hasEnded(job) ? null : cancelButton(job, page)),
  );
}

async function follow(id, page, merged) {
  try {
    for await (const job of events(`jobs/${encodeURIComponent(id)}/events`, page.signal)) {
      page.show(merged(job));
    }
  } catch (error) {
    if (!page.signal.aborted) {
      console.info(`the events of job ${id} ended: ${error.message}`); // the page asks every few seconds besides
    }
  }
}

function progressBar(job) {
  return h(
    "progress",
    { max: "1", value: String(job.progress), "aria-label": `progress of job ${job.id}` },
    `${Math.round(100 * job.progress)} %`,
  );
}

function took(job) {
  const end = job.finished_at ? new Date(job.finished_at) : new Date();
  return duration((end - new Date(job.created_at)) / 1000);
}

function cancelButton(job, page) {
  const cancel = async () => {
    if (
      await confirmed({
        title: "Cancel the job?",
        text: `Job ${job.id} (${job.kind}) stops, and what it did is lost.`,
        yes: "Cancel the job",
      })
    ) {
      await attempt(() => remove(`jobs/${encodeURIComponent(job.id)}`), `Job ${job.id} is cancelled.`);
      await page.refresh();
    }
  };
  return h("button", { type: "button", id: `cancel-${job.id}`, onclick: cancel }, "Cancel");
}

/** What a job made: a fit's chain with its certificate; files; all else as it was told. */
function outcome({ id, kind, result }) {
  const files = [
    result.vectors_url ? saveButton(`jobs/${id}/vectors`, `${id}.npy`, "Save the vectors") : null,
    result.report_url ? saveButton(`jobs/${id}/report`, `${id}.html`, "Save the report") : null,
  ];
  if (kind !== "fit") {
    return section(
      "What it made",
      h("p", { class: "buttons" }, files),
      scroller("The result as JSON", h("pre", {}, JSON.stringify(result, null, 1))),
    );
  }
  return section(
    "What it made",
    h(
      "p",
      {},
      chainLink(result.chain),
      result.promoted ? " is live." : " is not live: promote it on its page.",
      result.size_routes?.length ? ` It answers the sizes ${result.size_routes.join(", ")}.` : "",
    ),
    result.failed_gates.length
      ? h("p", { class: "notice bad" }, `Below its gates: ${result.failed_gates.join(", ")}.`)
      : null,
    h("p", {}, rowsSentence(result.certificate)),
    figureCards(result.certificate),
    warningList(result.certificate),
    h("p", { class: "buttons" }, files),
  );
}
