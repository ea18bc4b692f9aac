// Durable sessions: their records in the archive, what becomes of them when those are committed,
// and how they are found again.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/identity/tenants.h"
#include "server/session/session_store.h"
#include "server/state/state_values.h"

namespace recurve {
namespace {

using nlohmann::json;

// The keys of records: "owner", whose text is how often a server has taken the folder, "model ID",
// and "session TENANT/NAME", whose text is JSON:
//
//   {"epoch", "commit", "owner" (how often the folder had been taken then), "at": POINT, "parent"
//   (absent: none), "initial_state": {"name", "digest", "position"} (that it started from; absent:
//   none), "adapter": {"name", "digest"} (with which it is computed; absent: none), "ttl_seconds"
//   (absent: 0), "rewind_tokens" (absent: 0), "marks": {NAME: POINT} (absent: none), "model" (ID of
//   the record of that, see StoredModel; absent in texts of before: the states say it)}
//
// A POINT is {"position", "pending" (absent: none), "state" (its index among the record's states;
// absent: nothing absorbed), "request" and "digest" (of the answer that ended there; absent:
// none), "log" (absent: no tokens are stored)}. Texts of before have "tenant" and "name" too.
//
// A "log" is {"begin" (the position of the first token that is stored), "before" and "digest" (of
// the tokens before that one, and of all), "parts": [[FIRST, INDEX]] (the position of the first
// token of each part of the text, and its index among the record's states)}; see TokenLog.
constexpr const char* kOwner = "owner";
constexpr std::string_view kSession = "session ";
// More parts than the tokens of a session are in: see new_tokens().
constexpr size_t kMostParts = 64;

// The index of the state among the record's.
size_t index_of(uint64_t id, std::vector<uint64_t>* states) {
  for (size_t index = 0; index < states->size(); ++index) {
    if ((*states)[index] == id) return index;
  }
  states->push_back(id);
  return states->size() - 1;
}

uint64_t id_of(const StoredPtr& stored) { return stored ? stored->id() : 0; }

// new_tokens: those of the last part, if it is not there yet.
json log_of(const Snapshot& at, uint64_t new_tokens, std::vector<uint64_t>* states) {
  json parts = json::array();
  for (const StoredTokens& part : at.tokens) {
    const uint64_t id = part.stored ? part.stored->id() : new_tokens;
    parts.push_back({part.first, index_of(id, states)});
  }
  return {{"begin", at.log.begin()},
          {"before", at.log.first_digest()},
          {"digest", at.log.digest()},
          {"parts", std::move(parts)}};
}

json point_of(const Snapshot& at, uint64_t state, uint64_t new_tokens,
              std::vector<uint64_t>* states) {
  json point = {{"position", at.position}};
  if (at.pending) point["pending"] = *at.pending;
  if (state > 0) point["state"] = index_of(state, states);
  if (at.answered) {
    point["request"] = at.answered->id;
    point["digest"] = std::string_view(at.answered->digest);
  }
  if (at.log.most() > 0 && at.position > 0) point["log"] = log_of(at, new_tokens, states);
  return point;
}

json id_json(const BoundId& id) { return {{"name", id.name}, {"digest", id.digest}}; }

void add_binding(const Binding& binding, json* all) {
  const auto& [initial_state, adapter] = binding;
  if (initial_state) {
    json& initial = (*all)["initial_state"] = id_json(initial_state->id);
    initial["position"] = initial_state->position;
  }
  if (adapter) (*all)["adapter"] = id_json(adapter->id);
}

// The one among `known` with the id in `text`, or one that this server does not have.
template <typename Bound>
std::shared_ptr<const Bound> bound_of(const json& text,
                                      const std::vector<std::shared_ptr<const Bound>>& known) {
  Bound bound{.id = {.name = text.at("name"), .digest = text.at("digest")}};
  for (const auto& one : known) {
    if (one->id == bound.id) return one;
  }
  if constexpr (requires { bound.position; }) bound.position = text.at("position");
  return std::make_shared<const Bound>(std::move(bound));
}

// What add_binding() has added. Throws json::exception.
Binding binding_of(const json& all, const SessionLimits& limits) {
  Binding binding;
  if (all.contains("initial_state")) {
    binding.initial_state = bound_of(all.at("initial_state"), limits.initial_states);
  }
  if (all.contains("adapter")) binding.adapter = bound_of(all.at("adapter"), limits.adapters);
  return binding;
}

// An epoch that a client may have seen of a session's lost changes is not given again.
uint64_t lost_epochs(const Session& session) { return session.in_doubt ? uint64_t{1} << 20 : 0; }

// What log_of() has made of the snapshot's log; if it is something else, its tokens are not known.
// Throws json::exception or std::out_of_range.
void read_log(const json& log, const std::vector<StoredPtr>& states, int64_t most, Snapshot* at) {
  const int64_t begin = log.at("begin"), end = at->position;
  for (const json& part : log.at("parts")) {
    const int64_t first = part.at(0);
    if (!at->tokens.empty()) at->tokens.back().end = first;
    at->tokens.push_back({first, end, states.at(part.at(1).get<size_t>())});
  }
  const auto in_order = [](const StoredTokens& part) { return part.first < part.end; };
  const bool has_all = at->tokens.empty()
                           ? begin == end
                           : at->tokens.front().first <= begin && begin < at->tokens.front().end;
  if (begin < 0 || begin > end || end - begin > most || !has_all ||
      at->tokens.size() > kMostParts || !std::ranges::all_of(at->tokens, in_order)) {
    at->tokens.clear();
    return;
  }
  at->log = TokenLog::stored(most, begin, end, log.at("before"), log.at("digest"));
}

// Throws json::exception, std::out_of_range or StateError, where it is not what point_of() makes.
Snapshot snapshot_of(const json& point, const std::vector<StoredPtr>& states, int64_t rewind_tokens,
                     const StateHeader& wanted) {
  Snapshot at{.position = point.at("position")};
  if (point.contains("pending")) at.pending = point.at("pending").get<int32_t>();
  check_text(at.position, at.pending, wanted);
  if (point.contains("state")) at.stored = states.at(point.at("state").get<size_t>());
  if (point.contains("request")) {
    at.answered = std::make_shared<const AnsweredRequest>(
        AnsweredRequest{point.at("request").get<std::string>(),
                        std::string_view(point.at("digest").get_ref<const std::string&>())});
  }
  at.log = TokenLog::unknown(rewind_tokens, at.position);
  if (point.contains("log")) read_log(point.at("log"), states, rewind_tokens, &at);
  return at;
}

}  // namespace

std::string SessionStore::key_of(const Session& session) {
  return fmt::format("{}{}/{}", kSession, session.tenant_name, session.name);
}

SessionStore::Restored SessionStore::restore(Clock::time_point now) {
  Restored restored;
  owner_epoch_ = 1;
  archive_->store().for_each_record([&](const StateStore::Record& record) {
    if (is_expendable(record.key)) return;  // no session's
    if (record.key == kOwner) {
      const uint64_t before = std::strtoull(record.text.c_str(), nullptr, 10);
      owner_epoch_ = std::max(owner_epoch_, before + 1);
    } else if (auto model = StoredModel::from(record)) {  // before sessions, by its key
      found_models_[model->id].model = std::move(*model);
    } else if (!restore_one(record, now)) {
      ++restored.unknown;
    }
  });
  // One start's, at most, is lost with what it committed.
  if (archive_->store().damage().records_lost) ++owner_epoch_;
  write_owner();
  restored.other_model = settle_models();
  return restored;
}

// Before what is committed under this epoch: where the disk took it not, with the next commit.
void SessionStore::write_owner() {
  owner_written_ = true;
  archive_->commit(
      {.key = kOwner, .text = std::to_string(owner_epoch_)},
      [this](const StateStore::Outcome& outcome) { owner_written_ = outcome.error.empty(); });
}

// Says which other models there are, and leaves the records of those alone that sessions are of.
int SessionStore::settle_models() {
  int others = 0;
  for (const auto& [id, found] : std::exchange(found_models_, {})) {
    if (id == model_.id) continue;
    others += found.sessions;
    if (found.sessions == 0) {
      archive_->commit({.key = found.model.record_key(), .removes = true}, [](const auto&) {});
    } else if (limits_.on_other_model) {
      limits_.on_other_model(found.model, found.sessions);
    }
  }
  archive_->commit({.key = model_.record_key(), .text = model_.record_text()}, [](const auto&) {});
  return others;
}

// Of records of before, the header of a state says it, where that can be read now.
StoredModel SessionStore::model_of(const StateStore::Record& record, const std::string& id) {
  if (record.states.empty()) return model_;  // any model can go on with it
  if (!id.empty()) return {.id = id};
  try {
    return StoredModel::of(archive_->store().read_header(*record.states.front()), "");
  } catch (const std::exception&) {  // who uses it hears why
    return model_;
  }
}

void SessionStore::check_model(Session& session, StoredModel model) {
  FoundModel& found = found_models_[model.id];
  ++found.sessions;
  if (model.id == model_.id) return;
  if (found.model.id.empty()) found.model = std::move(model);
  if (!found.difference) {
    found.difference = std::make_shared<const std::string>(difference(found.model, model_));
  }
  session.other_model = found.difference;
}

bool SessionStore::restore_one(const StateStore::Record& record, Clock::time_point now) {
  const size_t slash = record.key.find('/');  // the first one: tenants' names have none
  if (!record.key.starts_with(kSession) || slash == std::string::npos) return false;
  const json all = json::parse(record.text, nullptr, false);
  try {
    const Tenant tenant =
        tenant_named(std::string_view(record.key).substr(kSession.size(), slash - kSession.size()));
    StoredModel model = model_of(record, all.value("model", std::string()));
    const StateHeader any;
    const StateHeader& wanted = model.id == model_.id ? wanted_ : any;
    const int64_t rewind_tokens =
        std::clamp(all.value("rewind_tokens", int64_t{0}), int64_t{0}, kMostRewindTokens);
    Snapshot at = snapshot_of(all.at("at"), record.states, rewind_tokens, wanted);
    std::map<std::string, Snapshot> marks;
    if (all.contains("marks")) {
      for (const auto& [name, point] : all.at("marks").items()) {
        marks[name] = snapshot_of(point, record.states, rewind_tokens, wanted);
      }
    }
    const uint64_t epoch = all.at("epoch"), commits = all.at("commit");
    const double ttl = all.value("ttl_seconds", 0.0);
    const uint64_t owner = all.value("owner", uint64_t{0});
    Binding binding = binding_of(all, limits_);
    Session& session = put({tenant.id, record.key.substr(slash + 1)},
                           all.value("parent", std::string()), std::move(at), ttl, now);
    session.claim = claim({tenant.id, std::string(session.name)});
    session.tenant_name = tenant.name;
    session.in_doubt = record.in_doubt;
    session.commit_owner = owner;
    owner_epoch_ = std::max(owner_epoch_, owner + 1);
    session.binding = std::move(binding);
    session.durability = Durability::kLocal;
    session.epoch = epoch;
    session.commits = commits;
    session.marks = std::move(marks);
    count_pages(session);
    check_model(session, std::move(model));
    update(session);
    return true;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return false;
  }
}

std::optional<CommitInfo> SessionStore::last_commit(const Session& session) const {
  if (session.commits == 0) return std::nullopt;
  return CommitInfo{.owner_epoch = session.commit_owner,
                    .number = session.commits,
                    .position = session.at.position};
}

StateHeader SessionStore::header_of(const Session& session, const Snapshot& at) const {
  StateHeader header = wanted_;
  if (session.binding.adapter) header.adapter = session.binding.adapter->id;
  header.position = at.position;
  header.pending = at.pending;
  header.history.assign(at.history.words().begin(), at.history.words().end());
  return header;
}

StateStore::Change SessionStore::change_of(const Session& session, Proposal* proposal) {
  Snapshot& at = proposal->at;
  StateStore::Change change{.key = key_of(session), .tenant = std::string(session.tenant_name)};
  uint64_t id = id_of(at.stored);
  if (proposal->writes) {
    StateStore::NewState& state = change.state.emplace(
        StateStore::NewState{header_of(session, at), at.image, std::move(proposal->continues)});
    id = state.header.id = archive_->store().new_id();
    if (!proposal->answer.request_id.empty()) {
      at.answered = std::make_shared<const AnsweredRequest>(
          AnsweredRequest{proposal->answer.request_id, std::string_view(proposal->answer.digest)});
      state.header.answer = std::move(proposal->answer);
      state.header.answer_ids = std::move(proposal->answer_ids);
    }
  }
  change.tokens = new_tokens(&at);
  json marks = json::object();
  json point = point_of(at, id, change.tokens ? change.tokens->id : 0, &change.states);
  for (const auto& [name, mark] : proposal->marks) {
    marks[name] = point_of(mark, id_of(mark.stored), 0, &change.states);
  }
  json all = {{"epoch", session.epoch + lost_epochs(session) + (proposal->changes ? 1 : 0)},
              {"commit", session.commits + 1},
              {"owner", owner_epoch_},
              {"model", model_.id},
              {"at", std::move(point)}};
  if (!session.parent.empty()) all["parent"] = session.parent;
  add_binding(session.binding, &all);
  if (session.ttl_seconds > 0) all["ttl_seconds"] = session.ttl_seconds;
  if (const int64_t most = session.at.log.most()) all["rewind_tokens"] = most;
  if (!marks.empty()) all["marks"] = std::move(marks);
  change.text = all.dump();
  return change;
}

// The tokens of the log that are to be written: those that no part has, with those of the last
// parts that are less than twice as many. So a few parts have them all, and each is written a few
// times.
std::optional<StateStore::NewTokens> SessionStore::new_tokens(Snapshot* at) {
  const TokenLog& log = at->log;
  std::vector<StoredTokens>& parts = at->tokens;
  std::erase_if(parts, [&](const StoredTokens& part) { return part.end <= log.begin(); });
  while (!parts.empty() && parts.back().end > log.end()) parts.pop_back();  // left by a rewind
  int64_t first = parts.empty() ? log.begin() : parts.back().end;
  if (first == log.end()) return std::nullopt;
  while (!parts.empty() && parts.back().end - parts.back().first < 2 * (log.end() - first)) {
    first = std::max(parts.back().first, log.begin());
    parts.pop_back();
  }
  parts.push_back({.first = first, .end = log.end()});
  return StateStore::NewTokens{archive_->store().new_id(), first, log.words(first, log.end())};
}

// The session is busy, and stays so until done() has been called; it is as proposed then, or as it
// was.
void SessionStore::commit(Session& session, Proposal proposal, Committed done) {
  if (!owner_written_) write_owner();
  StateStore::Change wanted = change_of(session, &proposal);
  proposal.at.image.reset();  // it goes once it is written
  const auto become = std::make_shared<Proposal>(std::move(proposal));
  write(std::move(wanted),
        [this, &session, become, done = std::move(done)](const StateStore::Outcome& outcome) {
          if (outcome.error.empty()) {
            session.marks = std::move(become->marks);
            ++session.commits;
            session.epoch += lost_epochs(session);
            session.in_doubt = false;
            session.commit_owner = owner_epoch_;
            if (become->changes) {
              take_slot(session);
              session.at = std::move(become->at);
              session.state_lost = false;
              ++session.epoch;
            } else {
              session.at.tokens = std::move(become->at.tokens);
            }
            if (outcome.tokens) session.at.tokens.back().stored = outcome.tokens;
            if (outcome.state) session.at.stored = outcome.state;
            count_pages(session);
            const bool moves = become->changes && session.residency != Residency::kSaving;
            update(session, moves ? outside_slot(session.at) : session.residency);
          }
          done(outcome.error);
        });
}

void SessionStore::let_be(Session& session) {
  session.busy = session.emptying = false;
  update(session);
}

SessionResult SessionStore::commit_then_tell(Session& session, Proposal proposal,
                                             const SessionCommand& command, Clock::time_point now) {
  using Kind = SessionCommand::Kind;
  const bool is_new =
      command.kind == Kind::kOpen || command.kind == Kind::kFork || command.kind == Kind::kImport;
  set_busy(session, true);
  commit(session, std::move(proposal),
         [this, &session, now, is_new, tell = command.done](const std::string& error) {
           let_be(session);
           touch(session, now);
           SessionResult result = described(session, now);
           if (!error.empty()) {
             result = {.reason = EndReason::kExhausted, .message = error};
             if (is_new) erase(session);
           }
           if (tell) tell(std::move(result));
         });
  return {.progress = SessionResult::Progress::kCommitting};
}

SessionResult SessionStore::remove_then_tell(Session& session, const SessionCommand& command,
                                             Clock::time_point now) {
  set_busy(session, true);
  write({.key = key_of(session), .removes = true},
        [this, &session, now, tell = command.done](const StateStore::Outcome& outcome) {
          let_be(session);
          SessionResult result = described(session, now);
          if (outcome.error.empty()) {
            erase(session);
          } else {
            result = {.reason = EndReason::kExhausted, .message = outcome.error};
          }
          if (tell) tell(std::move(result));
        });
  return {.progress = SessionResult::Progress::kCommitting};
}

// To be committed: without the pages that are on the disk.
StateImage SessionStore::save_new_pages(const Session& session, const StateSlot& slot,
                                        int64_t position, const StoredPtr& continues) {
  const int64_t pages = continues ? archive_->store().pages_of(*continues).count : 0;
  if (pages == 0 || pages > position / kPageTokens) return save(session, slot, position);
  const size_t fixed = pool_.layout().pieces().size();
  const StatePiece no_page{.bytes = pool_.layout().page_bytes()};
  const auto list =
      std::make_shared<std::vector<StatePiece>>(fixed + static_cast<size_t>(pages), no_page);
  for (int64_t p = 0; p < pages; ++p) {
    (*list)[fixed + static_cast<size_t>(p)].name = page_name(p);
  }
  return cache_.save(StateCache::Owner::kSessions, slot, position, list, pages * kPageTokens);
}

void SessionStore::commit_turn(Session& session, std::optional<StateSlot> slot, Snapshot at,
                               StateAnswer answer, std::vector<int32_t> answer_ids, Kept done) {
  Proposal proposal{
      .at = std::move(at), .answer = std::move(answer), .answer_ids = std::move(answer_ids)};
  commit_answer(session, std::move(slot), session.at.stored, std::move(proposal), std::move(done));
}

// continues: a stored state on the way to the one that is committed; null: none.
void SessionStore::commit_answer(Session& session, std::optional<StateSlot> slot,
                                 StoredPtr continues, Proposal proposal, Kept done) {
  proposal.at.history.end_request();
  proposal.at.tokens = session.at.tokens;  // of the text that it goes on with, or has returned to
  if (continues && archive_->store().is_gone(*continues)) continues.reset();
  if (slot) {
    proposal.at.image = save_new_pages(session, *slot, proposal.at.position, continues);
  }
  const auto kept = std::make_shared<std::optional<StateSlot>>(std::move(slot));
  proposal.marks = session.marks;
  proposal.continues = std::move(continues);
  proposal.writes = proposal.changes = true;
  update(session, Residency::kSaving);
  commit(session, std::move(proposal), [this, &session, kept, done](const std::string& error) {
    if (!error.empty()) {
      roll_back(session, session.last_used);
      return done(std::nullopt, error);
    }
    session.busy = false;
    session.last_used = Clock::now();
    if (*kept) {
      put_in_slot(session, std::move(**kept));
    } else {
      rest_outside_slot(session);
    }
    done(last_commit(session), error);
  });
}

void SessionStore::roll_back(Session& session, Clock::time_point now) {
  session.busy = false;
  session.last_used = now;
  rest_outside_slot(session);
}

void SessionStore::rest_outside_slot(Session& session) {
  if (session.at.stored) session.at.history = {};  // it comes back with the state
  update(session, outside_slot(session.at));
}

}  // namespace recurve
