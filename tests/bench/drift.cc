// recurve-bench drift: the bits per token of a text, scored by single steps as a decode makes them
// or by prompts, on a device, and by single steps on another that it is compared with. What
// rounding does to a state would add up from step to step. The text comes as it is where the build
// has tokenizers, or as token ids.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>

#include "model/load_model.h"
#include "tests/bench/commands.h"
#include "tests/bench/report.h"
#include "tests/bench/step_bench.h"
#if RECURVE_SERVER
#include "server/text/json/json_fields.h"
#include "server/text/tokenizers/tokenizer.h"
#endif

namespace recurve::bench {
namespace {

struct DriftOptions {
  std::vector<std::string> models;
  std::string text, ids;
  std::string device = "cpu", against = "cpu";
  std::string weights = "auto", head_weights, against_weights = "auto";
  ActivationType activations = ActivationType::kF32;
  bool bf16_state = false, f32_kv = false;
  int written_every = 1;
  int tokens = 10000, rows = 1;
  double within = 0;
};

// A model on a device with one sequence of up to `tokens`, of which up to `rows` come at once.
class Decoder {
 public:
  Decoder(const std::string& directory, const std::string& device, ActivationType activations,
          const LoadOptions& options, int64_t tokens, int rows)
      : backend_(make_backend(device, 0, activations)),
        stream_(backend_->make_stream()),
        model_(load(directory, *backend_, options)),
        pool_(*backend_, model_->state_layout(), 1, *stream_, nullptr,
              {static_cast<int32_t>(StateLayout::pages(tokens)), tokens}),
        slot_(*pool_.acquire()),
        arena_(*backend_, model_->arena_bytes({.rows = rows, .logits = rows})),
        vocab_(static_cast<size_t>(model_->info().vocab)),
        logits_(static_cast<size_t>(rows) * vocab_),
        logits_there_(backend_->allocate(logits_.size() * sizeof(float))),
        inputs_there_(
            backend_->allocate((kHeader + 2 * static_cast<size_t>(rows)) * sizeof(int32_t))) {
    pool_.wait_for_copies();
    CHECK(pool_.grow(slot_, 0, tokens));
    table_rows_.resize(pool_.table_words());
    pool_.send_table(table_rows_);
  }

  // The logits behind each of some more tokens: (tokens, vocabulary).
  const std::vector<float>& step(std::span<const int32_t> tokens) {
    const auto rows = static_cast<int32_t>(tokens.size());
    std::vector<int32_t> inputs = {0, rows, static_cast<int32_t>(slot_.id())};
    for (int32_t row = 0; row < rows; ++row) inputs.push_back(row);
    inputs.insert(inputs.end(), tokens.begin(), tokens.end());
    backend_->upload(inputs_there_.data(), inputs.data(), inputs.size() * sizeof(int32_t),
                     *stream_);
    const auto* at = inputs_there_.as<int32_t>();
    model_->forward(
        {.seqs = {.num_seqs = 1, .rows = rows, .max_len = rows, .begin = at, .slot = at + 2},
         .tokens = at + kHeader + rows,
         .num_logits = rows,
         .logit_rows = at + kHeader},
        pool_, arena_, *stream_, logits_there_.as<float>());
    backend_->download(logits_.data(), logits_there_.data(), tokens.size() * vocab_ * sizeof(float),
                       *stream_);
    stream_->wait();
    return logits_;
  }
  size_t vocab() const { return vocab_; }

 private:
  static constexpr size_t kHeader = 3;  // where rows begin and end, and the slot
  static std::unique_ptr<const Model> load(const std::string& directory, Backend& backend,
                                           const LoadOptions& options) {
    Checkpoint checkpoint = Checkpoint::open(directory);
    return load_model(checkpoint, backend, options);
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<const Model> model_;
  StatePool pool_;
  std::vector<int32_t> table_rows_;
  StateSlot slot_;
  Arena arena_;
  size_t vocab_;
  std::vector<float> logits_;           // (rows, vocab)
  Buffer logits_there_, inputs_there_;  // in the device's memory
};

// -log2 of the probability of the token.
double bits_of(std::span<const float> logits, int32_t token) {
  double largest = -INFINITY, sum = 0;
  for (const float logit : logits) largest = std::max<double>(largest, logit);
  for (const float logit : logits) sum += std::exp(logit - largest);
  return (std::log(sum) + largest - logits[static_cast<size_t>(token)]) / std::log(2.0);
}

// Numbers, with white space between them.
std::vector<int32_t> read_ids(const std::string& path) {
  std::ifstream file(path);
  std::vector<int32_t> ids(std::istream_iterator<int32_t>(file), {});
  if (!file.eof()) throw std::runtime_error(path + ": not a list of token ids");
  return ids;
}

#if RECURVE_SERVER
std::vector<int32_t> tokens_of(const std::string& text, const std::string& directory) {
  const auto tokenizer = load_tokenizer(directory);
  std::vector<int32_t> ids = tokenizer->encode(read_text_file(text));
  ids.insert(ids.begin(), tokenizer->bos_id().value_or(0));
  return ids;
}
#else
std::vector<int32_t> tokens_of(const std::string&, const std::string&) {
  throw std::runtime_error("this build has no tokenizers: --ids instead of --text");
}
#endif

// As many tokens as are to be scored, and one before them.
std::vector<int32_t> read_tokens(const DriftOptions& o, const std::string& directory) {
  std::vector<int32_t> tokens = o.ids.empty() ? tokens_of(o.text, directory) : read_ids(o.ids);
  if (static_cast<int>(tokens.size()) <= o.tokens) {
    throw std::runtime_error(fmt::format("{}: wanted {} tokens and one before them, found {}",
                                         o.ids.empty() ? o.text : o.ids, o.tokens, tokens.size()));
  }
  tokens.resize(static_cast<size_t>(o.tokens) + 1);
  return tokens;
}

double percent_apart(double found, double wanted) { return 100 * (found - wanted) / wanted; }

// Compares both on one model; gives how far apart they are, in percent.
double compare(const DriftOptions& o, const std::string& directory, Report& report) {
  const std::vector<int32_t> tokens = read_tokens(o, directory);
  Decoder device(directory, o.device, o.activations,
                 {.weights = WeightFormats::named(o.weights, o.head_weights),
                  .state = o.bf16_state ? DType::kBF16 : DType::kF32,
                  .written_every = o.written_every,
                  .kv = o.f32_kv ? DType::kF32 : DType::kBF16},
                 o.tokens, o.rows);
  Decoder against(directory, o.against, ActivationType::kF32,
                  {.weights = WeightFormats::named(o.against_weights), .kv = DType::kF32}, o.tokens,
                  1);
  const size_t rows = static_cast<size_t>(o.rows), vocab = device.vocab();
  const std::vector<float>* block = nullptr;
  const size_t last_tenth = tokens.size() - tokens.size() / 10;
  double found = 0, wanted = 0, found_late = 0, wanted_late = 0, difference = 0;
  for (size_t t = 0; t + 1 < tokens.size(); ++t) {
    if (t % rows == 0) {
      block = &device.step(std::span(tokens).subspan(t, std::min(rows, tokens.size() - 1 - t)));
    }
    const auto logits = std::span(*block).subspan(t % rows * vocab, vocab);
    const std::vector<float>& exact = against.step(std::span(tokens).subspan(t, 1));
    for (size_t i = 0; i < logits.size(); ++i) {
      difference = std::max<double>(difference, std::fabs(logits[i] - exact[i]));
    }
    found += bits_of(logits, tokens[t + 1]);
    wanted += bits_of(exact, tokens[t + 1]);
    if (t >= last_tenth) {
      found_late += bits_of(logits, tokens[t + 1]);
      wanted_late += bits_of(exact, tokens[t + 1]);
    }
  }
  const double percent = percent_apart(found, wanted);
  report.add({{"bench", "drift"},
              {"model", std::filesystem::path(directory).filename().string()},
              {"device", o.device},
              {"weights", o.weights},
              {"activations", name_of(o.activations)},
              {"state", o.bf16_state ? "bf16" : "f32"},
              {"kv", o.f32_kv ? "f32" : "bf16"},
              {"tokens", o.tokens},
              {"rows", o.rows},
              {"bits_per_token", found / o.tokens},
              {"against_" + o.against, wanted / o.tokens},
              {"percent_apart", percent},
              {"percent_in_last_tenth", percent_apart(found_late, wanted_late)},
              {"largest_logit_difference", difference}});
  return std::fabs(percent);
}

void run(const DriftOptions& o, bool json) {
  Report report(json);
  std::string too_far;
  for (const std::string& model : o.models) {
    const double percent = compare(o, model, report);
    if (o.within > 0 && !(percent <= o.within)) too_far += " " + model;
  }
  if (!too_far.empty()) {
    throw std::runtime_error(fmt::format("more than {} % apart:{}", o.within, too_far));
  }
}

}  // namespace

void add_drift(CLI::App& app, const bool& json) {
  auto o = std::make_shared<DriftOptions>();
  CLI::App* drift = app.add_subcommand("drift",
                                       "Compare the bits per token of a text, decoded on two "
                                       "devices");
  drift->add_option("--model", o->models, "Checkpoint directories")->required();
  CLI::Option_group* input = drift->add_option_group("input");
  input->add_option("--text", o->text, "Text in UTF-8, for the models' tokenizers");
  input->add_option("--ids", o->ids, "File of token ids; the first is not scored");
  input->require_option(1);
  drift->add_option("--tokens", o->tokens, "Tokens of the text, from its start")
      ->check(CLI::Range(100, 1 << 24));
  drift
      ->add_option("--rows", o->rows,
                   "Tokens at once on --device: 1 is a decode, more are "
                   "prompts")
      ->check(CLI::Range(1, 65536));
  drift->add_option("--device", o->device, "cpu, cuda:N or reference")->capture_default_str();
  add_activations(*drift, o->activations);
  drift->add_flag("--bf16-state", o->bf16_state, "Store matrix states in bf16 on --device");
  drift->add_option("--written-every", o->written_every,
                    "Tokens from one writing of a matrix state to the next on --device");
  drift->add_flag("--f32-kv", o->f32_kv, "Store keys and values of attention in f32 on --device");
  drift
      ->add_option("--weights", o->weights,
                   "Format of the weights on --device: auto, bf16, int8, ...")
      ->capture_default_str();
  drift->add_option("--head-weights", o->head_weights,
                    "Format of the embedding and the head on --device");
  drift->add_option("--against-weights", o->against_weights, "Format of the weights on --against")
      ->capture_default_str();
  drift
      ->add_option("--against", o->against,
                   "Device to compare with, states, keys and values in fp32")
      ->capture_default_str();
  drift->add_option("--within", o->within, "Fail if they differ by more than this; percent");
  drift->callback([o, &json] { run(*o, json); });
}

}  // namespace recurve::bench
