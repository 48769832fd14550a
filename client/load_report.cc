// SPDX-License-Identifier: Apache-2.0
// See load_report.h.
#include "client/load_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace normserve::client {
namespace {

struct Samples {
  std::vector<int64_t> first, inter, end, lag;
};

void Add(const CallRecord& record, Samples* samples, LoadReport* report) {
  samples->lag.push_back(record.sent_ns - record.intended_ns);
  if (!record.status.ok()) {
    const std::string code = CodeName(record.status.code());
    ++report->errors[code];
    report->error_example.try_emplace(code, record.status.message());
    return;
  }
  ++report->succeeded;
  report->prompt_tokens += record.prompt_tokens;
  report->output_tokens += record.output_tokens;
  samples->end.push_back(record.end_ns - record.intended_ns);
  if (record.first_token_ns != 0) {
    samples->first.push_back(record.first_token_ns - record.intended_ns);
  }
  samples->inter.insert(samples->inter.end(), record.inter_token_ns.begin(),
                        record.inter_token_ns.end());
}

void FindInvalid(const LoadOutcome& outcome, double lag_limit_ms, LoadReport* report) {
  if (report->dispatch_lag.p99_ms > lag_limit_ms) {
    report->invalid.push_back(
        absl::StrFormat("dispatch lag p99 %.1f ms is above the limit of %.1f ms: the client could "
                        "not send at the rate asked for",
                        report->dispatch_lag.p99_ms, lag_limit_ms));
  }
  if (outcome.unsent > 0) {
    report->invalid.push_back(absl::StrCat(outcome.unsent, " requests were due but never sent"));
  }
  if (outcome.interrupted) report->invalid.push_back("interrupted");
}

std::string LatencyRow(const char* name, const LatencySummary& summary) {
  return absl::StrFormat("%-14s %9d %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f\n", name,
                         summary.count, summary.mean_ms, summary.p50_ms, summary.p90_ms,
                         summary.p95_ms, summary.p99_ms, summary.max_ms);
}

nlohmann::json ToJson(const LatencySummary& summary) {
  return {{"count", summary.count}, {"mean", summary.mean_ms}, {"p50", summary.p50_ms},
          {"p90", summary.p90_ms},  {"p95", summary.p95_ms},   {"p99", summary.p99_ms},
          {"max", summary.max_ms}};
}

}  // namespace

LoadReport Report(const LoadPlan& plan, const LoadOutcome& outcome, double lag_limit_ms) {
  LoadReport report;
  report.offered = outcome.offered;
  report.sent = outcome.records.size();
  report.unsent = outcome.unsent;
  report.seconds = outcome.seconds;
  report.offered_per_s = plan.rate_per_s.value_or(0);
  Samples samples;
  for (const CallRecord& record : outcome.records) Add(record, &samples, &report);
  if (report.seconds > 0) {
    report.achieved_per_s = static_cast<double>(report.succeeded) / report.seconds;
    report.output_tokens_per_s = static_cast<double>(report.output_tokens) / report.seconds;
    report.total_tokens_per_s =
        static_cast<double>(report.prompt_tokens + report.output_tokens) / report.seconds;
  }
  report.time_to_first_token = Summarize(std::move(samples.first));
  report.inter_token = Summarize(std::move(samples.inter));
  report.end_to_end = Summarize(std::move(samples.end));
  report.dispatch_lag = Summarize(std::move(samples.lag));
  FindInvalid(outcome, lag_limit_ms, &report);
  return report;
}

std::string ToTable(const LoadReport& report) {
  std::string out = absl::StrFormat(
      "requests       %d offered, %d sent, %d succeeded, %d failed, %d unsent in %.2f s\n",
      report.offered, report.sent, report.succeeded, report.sent - report.succeeded, report.unsent,
      report.seconds);
  if (report.offered_per_s > 0) {
    absl::StrAppendFormat(&out, "rate           %.2f requests/s offered, %.2f achieved\n",
                          report.offered_per_s, report.achieved_per_s);
  }
  absl::StrAppendFormat(
      &out, "throughput     %.2f requests/s, %.1f output tokens/s, %.1f total tokens/s\n",
      report.achieved_per_s, report.output_tokens_per_s, report.total_tokens_per_s);
  absl::StrAppendFormat(&out, "tokens         %d prompt, %d output\n\n", report.prompt_tokens,
                        report.output_tokens);
  absl::StrAppendFormat(&out, "%-14s %9s %10s %10s %10s %10s %10s %10s\n", "ms", "samples", "mean",
                        "p50", "p90", "p95", "p99", "max");
  absl::StrAppend(&out, LatencyRow("TTFT", report.time_to_first_token),
                  LatencyRow("ITL", report.inter_token), LatencyRow("E2E", report.end_to_end));
  if (report.offered_per_s > 0) {
    absl::StrAppend(&out, LatencyRow("dispatch lag", report.dispatch_lag));
  }
  for (const auto& [code, count] : report.errors) {
    absl::StrAppendFormat(&out, "error          %s: %d (%s)\n", code, count,
                          report.error_example.at(code));
  }
  for (const std::string& reason : report.invalid) {
    absl::StrAppend(&out, "INVALID        ", reason, "\n");
  }
  return out;
}

nlohmann::json ToJson(const LoadReport& report) {
  return {{"requests",
           {{"offered", report.offered},
            {"sent", report.sent},
            {"unsent", report.unsent},
            {"succeeded", report.succeeded},
            {"failed", report.sent - report.succeeded}}},
          {"errors", report.errors},
          {"error_examples", report.error_example},
          {"seconds", report.seconds},
          {"offered_per_s", report.offered_per_s},
          {"requests_per_s", report.achieved_per_s},
          {"tokens", {{"prompt", report.prompt_tokens}, {"output", report.output_tokens}}},
          {"output_tokens_per_s", report.output_tokens_per_s},
          {"total_tokens_per_s", report.total_tokens_per_s},
          {"latency_ms",
           {{"time_to_first_token", ToJson(report.time_to_first_token)},
            {"inter_token", ToJson(report.inter_token)},
            {"end_to_end", ToJson(report.end_to_end)},
            {"dispatch_lag", ToJson(report.dispatch_lag)}}},
          {"valid", report.invalid.empty()},
          {"invalid_reasons", report.invalid}};
}

nlohmann::json ToJson(const CallRecord& record, int64_t start_ns) {
  const auto ms = [&](int64_t ns) { return static_cast<double>(ns - start_ns) / 1e6; };
  // Ids that came with the first one have no interval: its time is theirs.
  int64_t at = record.first_token_ns;
  std::vector<double> token_ms(record.token_ids.size() - record.inter_token_ns.size(), ms(at));
  for (const int64_t interval : record.inter_token_ns) token_ms.push_back(ms(at += interval));
  return {{"request", record.request},     {"status", CodeName(record.status.code())},
          {"prompt_tokens", record.prompt_tokens}, {"token_ids", record.token_ids},
          {"sent_ms", ms(record.sent_ns)}, {"end_ms", ms(record.end_ns)},
          {"token_ms", token_ms}};
}

}  // namespace normserve::client
