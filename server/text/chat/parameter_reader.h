#pragma once
#include <cstddef>
#include <string>

#include "server/text/chat/value_types.h"

namespace recurve {

// Converts the parameters of a call, each written as
// `<parameter=NAME>\nVALUE\n</parameter>\n`, to the text of a JSON object, while they are
// generated. A value is JSON if its type is one that the parameter may have, and else a string, as
// the model's chat template writes strings without quotes.
class ParameterReader {
 public:
  enum class Outcome {
    kMore,    // more text is needed
    kEnd,     // the object is complete
    kBroken,  // the text continues with something else; the object is not complete
  };

  // Starts the object of a call. The parameters outlive it.
  void begin(const ToolParameters& parameters, std::string* arguments);
  // Removes what it has read from the front of `held`, and appends the part of the object that is
  // certain.
  Outcome read(std::string* held, std::string* arguments);

 private:
  bool read_name(std::string* held, std::string* arguments, Outcome* outcome);
  bool read_value(std::string* held, std::string* arguments);

  const ToolParameters* parameters_ = nullptr;
  bool first_ = true;
  bool in_value_ = false, at_start_ = false;
  bool streams_ = false;  // the value is a string, which is appended while it is read
  ValueTypes types_ = kAnyType;
  size_t searched_ = 0;  // bytes of `held` that do not begin the end of the value
};

}  // namespace recurve
