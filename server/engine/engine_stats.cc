// Engine: what it publishes after each step, and the work of each interval.
#include <algorithm>

#include "server/engine/engine.h"

namespace recurve {
namespace {

// Interval of session expiry and of setting gauges while there is work.
constexpr auto kHousekeeping = std::chrono::milliseconds(100);

}  // namespace

void Engine::report(const Batch* finished) {
  const Clock::time_point now = Clock::now();
  prefixes_.use_disk(sessions_.spare_disk_bytes());  // first: writes of sessions may need the space
  sessions_.send_writes();
  if (finished != nullptr) {
    ++stats_.steps;
    const double seconds = seconds_between(std::max(finished->launched(), last_finish_), now);
    metrics_.observe_step(seconds, finished->rows());
    pace_.observe(finished->shape(), seconds);
    last_finish_ = now;
  }
  if (finished == nullptr || now >= next_housekeeping_) {
    next_housekeeping_ = now + kHousekeeping;
    sessions_.expire(now);
    stats_.expected_queue_seconds = waiting_.expected_seconds(load(), now);
    metrics_.set_expected_queue_seconds(stats_.expected_queue_seconds);
    report_states();
  }
  publish();
}

// Slots and pages change with each step, and are published together.
void Engine::publish() {
  stats_.running = static_cast<int>(running_.size());
  stats_.slots_free = pool_.free_slots() + waiting_.resident_states();
  stats_.slots_idle = stats_.slots - stats_.slots_free - stats_.running;
  stats_.pages = pool_.pages();
  stats_.pages_free = pool_.free_pages();
  published_.publish(stats_);
  metrics_.set_waiting(queue_.waiting());
  metrics_.set_slots(
      {.free = stats_.slots_free, .running = stats_.running, .session_idle = stats_.slots_idle});
  int64_t pages = 0;
  for (const auto& sequence : running_) pages += pool_.pages_of(sequence->slot);
  metrics_.set_pages({.total = stats_.pages,
                      .free = stats_.pages_free,
                      .running = pages,
                      .preemptions = stats_.preemptions});
}

// Of sessions and cached prompts.
void Engine::report_states() {
  const PrefixCache::Counts prefixes = prefixes_.counts();
  stats_.prefix_states = prefixes.states;
  stats_.prefix_bytes = prefixes.bytes;
  stats_.prefix_limit = prefixes.limit;
  stats_.prefix_states_disk = prefixes.disk_states;
  stats_.prefix_bytes_disk = prefixes.disk_bytes;
  metrics_.set_prefixes({.states = prefixes.states,
                         .bytes = prefixes.bytes,
                         .disk_states = prefixes.disk_states,
                         .disk_bytes = prefixes.disk_bytes,
                         .limit = prefixes.limit});
  const SessionStore::Counts counts = sessions_.counts();
  stats_.sessions = counts.total - counts.internal;
  stats_.responses = counts.internal;
  stats_.sessions_host = counts.in_host;
  stats_.host_bytes = counts.host_bytes;
  stats_.sessions_disk = counts.on_disk;
  if (Archive* archive = sessions_.archive()) {
    const StateStore::Usage usage = archive->store().usage();
    stats_.disk_bytes = static_cast<int64_t>(usage.bytes);
    metrics_.set_state_dir({.bytes = stats_.disk_bytes,
                            .set_aside = usage.set_aside,
                            .syncs = usage.syncs,
                            .written = static_cast<int64_t>(usage.written)});
  }
  metrics_.set_sessions({.in_slot = counts.in_slot,
                         .in_host = counts.in_host,
                         .on_disk = counts.on_disk,
                         .empty = counts.empty,
                         .to_slot = counts.to_slot,
                         .to_host = counts.to_host,
                         .to_disk = counts.to_disk});
  metrics_.set_session_host_bytes(counts.host_bytes);
}

}  // namespace recurve
