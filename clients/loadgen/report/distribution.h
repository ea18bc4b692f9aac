#pragma once
#include <cstdint>
#include <random>
#include <string>

namespace recurve::loadgen {

using Rng = std::mt19937_64;

// How long prompts, answers or pauses are. Written as
//   64                    always 64
//   uniform:16-256        each as likely as any other
//   lognormal:1024,0.5    its median, and the deviation of its logarithm: two thirds lie between
//                         median / e^0.5 and median * e^0.5. Draws are cut at 16 times the median.
class Distribution {
 public:
  explicit Distribution(double fixed) : low_(fixed), high_(fixed) {}
  // Throws std::invalid_argument; `what` begins the sentence: "--prompt-tokens".
  static Distribution parse(const std::string& text, const std::string& what);

  double draw(Rng& rng) const;
  // A whole number of tokens in [least, most].
  int64_t draw_tokens(Rng& rng, int64_t least, int64_t most) const;
  std::string text() const;  // as parse reads it

 private:
  enum class Kind { kFixed, kUniform, kLogNormal };
  Kind kind_ = Kind::kFixed;
  double low_, high_;  // kFixed, kUniform: bounds; kLogNormal: median and deviation
};

}  // namespace recurve::loadgen
