// One job: its progress, its training log, and its result.

import { ApiError, get, getText } from "./api.js";
import { h, section } from "./dom.js";
import { saveButton } from "./download.js";
import { cancelButton, follow, hasEnded, kindOf, progressBar, stateBadge, timeSentence } from "./jobs.js";
import { parseLog, trainingCharts } from "./log.js";
import { resultSection } from "./results.js";

const TRAINED = ["train", "adapt"];
const endedLogs = new Map();
const NO_JOB =
  "There is no job with this id. The server keeps the 200 newest jobs, and deletes older ones that have ended.";

/** The page of one job. */
export const jobView = {
  title: () => "Job",
  every: 4000,
  link: "jobs",
  async load([id], options) {
    const job = await loadJob(id, options);
    return { job, log: TRAINED.includes(job.kind) ? await loadLog(job, options) : [] };
  },
  draw({ job, log }, page) {
    const charts = trainingCharts(log);
    const logFile = charts.length ? saveButton(`jobs/${job.id}/log`, `${job.id}.jsonl`, "Save the training log") : null;
    return [
      section(
        kindOf(job),
        h("p", {}, stateBadge(job), " ", h("span", { id: "job-time" }, timeSentence(job))),
        h("p", { class: "hint" }, `Its id is ${job.id}.`),
        hasEnded(job) ? null : progressBar(job),
        hasEnded(job) ? null : h("p", { id: "job-message" }, job.message),
        job.state === "cancelled" ? h("p", {}, "This job was cancelled. It has no result.") : null,
        job.error ? h("p", { class: "notice bad" }, job.error) : null,
        hasEnded(job) ? null : h("p", { class: "buttons" }, cancelButton(job, page)),
      ),
      charts.length
        ? section("Training", h("div", { class: "charts" }, charts), h("p", { class: "buttons" }, logFile))
        : null,
      job.result ? resultSection(job) : null,
      h("p", {}, h("a", { href: "#/jobs" }, "All jobs")),
    ];
  },
  enter(page) {
    if (page.data && !hasEnded(page.data.job)) {
      follow(page.data.job.id, page, (job) => ({ ...page.data, job }));
    }
  },
};

async function loadJob(id, options) {
  try {
    return await get(`jobs/${encodeURIComponent(id)}`, options);
  } catch (error) {
    throw error.status === 404 ? new ApiError(NO_JOB, 404) : error;
  }
}

/** Load the training log so far; empty if the job has none. The log of a job that has ended is loaded once. */
async function loadLog(job, options) {
  if (endedLogs.has(job.id)) {
    return endedLogs.get(job.id);
  }
  let lines = [];
  try {
    lines = parseLog(await getText(`jobs/${encodeURIComponent(job.id)}/log`, options));
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 404)) {
      throw error;
    }
  }
  if (hasEnded(job)) {
    endedLogs.set(job.id, lines);
  }
  return lines;
}
