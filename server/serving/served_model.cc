#include "server/serving/served_model.h"

#include <pthread.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "server/constraint/compiler.h"
#include "server/observe/model_metrics.h"
#include "server/sampling/token_history.h"
#include "server/serving/chat_prompt.h"
#include "server/serving/gathered_answer.h"

namespace recurve {
namespace {

TokenTexts token_texts(const ModelText& text) {
  TokenTexts texts;
  for (int32_t id = 0; id < text.vocab.usable; ++id) {
    const bool special = text.tokenizer->is_special(id);
    texts.emplace_back(special ? std::string_view() : text.tokenizer->token_bytes(id));
  }
  return texts;
}

std::shared_ptr<const std::vector<uint64_t>> control_ids(const ModelText& text) {
  TokenHistory controls;
  for (int32_t id = 0; id < text.vocab.usable; ++id) {
    if (text.tokenizer->is_special(id)) controls.add_prompt(id);
  }
  return std::make_shared<std::vector<uint64_t>>(controls.words().begin(), controls.words().end());
}

CompileReports reports_to(ModelMetrics& metrics) {
  return {
      .counts =
          [&metrics](const CompileCounts& counts) {
            metrics.set_constraints({.compiled = counts.compiled,
                                     .from_cache = counts.from_cache,
                                     .refused = counts.refused,
                                     .given_up = counts.given_up,
                                     .turned_away = counts.turned_away,
                                     .waiting = counts.waiting,
                                     .cached_bytes = static_cast<int64_t>(counts.cached_bytes)});
          },
      .compiled = [&metrics](double seconds) { metrics.observe_constraint(seconds); }};
}

}  // namespace

// Reads from what the engine has, so it holds the model.
class ServedModel::LentState final : public StateSource {
 public:
  LentState(std::shared_ptr<ServedModel> model, std::shared_ptr<StateSource> state)
      : model_(std::move(model)), state_(std::move(state)) {}

  uint64_t bytes() override {
    std::lock_guard lock(mutex_);
    return state().bytes();
  }
  void read(uint64_t offset, std::span<char> to) override {
    std::lock_guard lock(mutex_);
    state().read(offset, to);
  }
  void let_go() {
    std::lock_guard lock(mutex_);
    state_.reset();  // first
    model_.reset();
  }

 private:
  StateSource& state() const {
    if (state_ == nullptr) throw StateGone("the model of the state was unloaded");
    return *state_;
  }

  std::mutex mutex_;
  std::shared_ptr<ServedModel> model_;
  std::shared_ptr<StateSource> state_;  // last: it goes first
};

std::shared_ptr<StateSource> ServedModel::lend(std::shared_ptr<ServedModel> self,
                                               std::shared_ptr<StateSource> state) {
  auto lent = std::make_shared<LentState>(std::move(self), std::move(state));
  std::lock_guard lock(lent_mutex_);
  std::erase_if(lent_, [](const auto& one) { return one.expired(); });
  lent_.push_back(lent);
  return lent;
}

void ServedModel::end() {
  ended_ = true;
  std::vector<std::weak_ptr<LentState>> lent;
  {
    std::lock_guard lock(lent_mutex_);
    lent.swap(lent_);
  }
  for (const auto& one : lent) {
    if (const auto state = one.lock()) state->let_go();
  }
}

ServedModel::ServedModel(int max_queue) : queue(max_queue) {}
ServedModel::~ServedModel() = default;

void ServedModel::load(std::shared_ptr<const Tokenizer> tokenizer, ServingInfo served, Chat chat,
                       int64_t max_prompt_tokens, int32_t max_generated_tokens,
                       int32_t max_tokens_default, std::shared_ptr<ModelMetrics> its_metrics) {
  metrics = std::move(its_metrics);
  info = std::move(served);
  text.vocab = {.rows = info.vocab_rows,
                .usable = std::min(tokenizer->size(), info.vocab_rows),
                .eos_ids = info.tokens.eos};
  text.answer_end = find_answer_end(chat, *tokenizer);
  text.chat = std::move(chat);
  text.tokenizer = std::move(tokenizer);
  text.control_ids = control_ids(text);
  text.tools = tool_rules_of(text);
  text.reasoning = reasoning_rules_of(text);
  text.longest = longest_tokens(*text.tokenizer, text.vocab.usable);
  text.tokens = info.tokens;
  text.max_prompt_tokens = max_prompt_tokens;
  text.max_generated_tokens = max_generated_tokens;
  text.max_tokens_default = max_tokens_default;
  text.max_choices = info.slots;
  text.initial_states = info.initial_states;
  text.adapters = info.adapters;
  text.width = info.hidden_width;
  constraints = std::make_unique<ConstraintCompiler>([this] { return token_texts(text); },
                                                     CompileLimits(), reports_to(*metrics));
  loaded_ = true;
}

const std::string& FoundModel::name() const { return adapter.empty() ? model->name() : adapter; }

ModelLoad load_of(const ServedModels& models) {
  ModelLoad load;
  for (const auto& model : models) {
    const EngineStats stats = model->stats.read();
    load.stats += stats;
    load.waiting += model->queue.waiting();
    load.max_queue += model->queue.max_waiting();
    load.page_bytes += stats.pages * model->info.page_bytes;
  }
  return load;
}

std::shared_ptr<ServedModel> ModelUse::begin(std::shared_ptr<ServedModel> model) {
  ServedModel* const used = model.get();
  const auto end = [state = state_, model = std::move(model)](ServedModel*) mutable {
    model.reset();  // not after the others know
    std::lock_guard lock(state->mutex);
    state->ended = true;
    state->changed.notify_all();
  };
  return {used, end};
}

bool ModelUse::wait_for_end(Clock::time_point until) const {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_until(lock, until, [&] { return state_->ended || state_->stopped; });
  return state_->ended;
}

void ModelUse::stop_waiting() {
  std::lock_guard lock(state_->mutex);
  state_->stopped = true;
  state_->changed.notify_all();
}

void ServedModel::start_engine(std::function<void()> run) {
  engine_thread_ = std::thread([run = std::move(run)] {
    pthread_setname_np(pthread_self(), "engine");
    run();
  });
}

void ServedModel::stop_engine() {
  queue.close();
  engine_thread_.join();
}

}  // namespace recurve
