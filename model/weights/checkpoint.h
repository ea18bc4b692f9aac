#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/tensor.h"
#include "kernels/weight_format.h"
#include "model/weights/adapter_targets.h"
#include "model/weights/fingerprint.h"
#include "model/weights/safetensors.h"
#include "model/weights/tensor_view.h"

namespace recurve {

class Backend;

// The weights and the config of a model, as a family's loader sees them:
//
//   take() every tensor by name and shape  ->  finish()
//
// A tensor that is missing or does not fit is noted and comes back as a view that is not present();
// finish() throws one error that lists them all, and the tensors that were not taken. Only then are
// the copies that were asked for meanwhile made, in the order of the files. So a checkpoint that
// does not fit is refused before anything is copied, and what LinearWeights and VectorWeights point
// to is all zeros until finish().
class Checkpoint {
 public:
  using Progress = std::function<void(uint64_t bytes_done, uint64_t bytes_total)>;

  // A Hugging Face directory: config.json, and model.safetensors or model.safetensors.index.json
  // with its shards, not both. Throws std::runtime_error, one sentence, if there is anything wrong
  // with the files themselves.
  static Checkpoint open(const std::filesystem::path& directory);

  // No files: every tensor asked for exists in the shape asked for, with random values of standard
  // deviation 1/sqrt(fan in), norm weights around 1. Optional tensors do not exist; of several
  // names the first does. For benchmarks. `config_file` names the config in messages.
  static Checkpoint random(nlohmann::json config, uint64_t seed,
                           std::string config_file = "config.json");

  // The same for the config.json of a directory, or any such file.
  static Checkpoint random_from(const std::filesystem::path& config, uint64_t seed);

  const nlohmann::json& config() const { return config_; }
  const std::string& config_file() const { return config_file_; }  // its path, for messages
  const std::string& where() const { return where_; }              // the directory; "(random)"
  bool is_random() const { return random_; }
  // A matrix is stored in a format of kernels/weight_formats.h with scales.
  bool is_packed() const;

  // Looks without taking: a tensor of that name or the values of a matrix in a format, see
  // take_matrix(). Null if there is none, and always for random weights.
  const TensorView* find(std::string_view name) const;

  // The first prefix with which `name` exists; the first of all if none does.
  // detect_prefix({"backbone.", "model.", ""}, "out_norm.weight")
  std::string detect_prefix(const std::vector<std::string>& prefixes, std::string_view name) const;

  // Takes the tensor if it is F32, F16 or BF16 and of one of the shapes; notes a problem if not.
  TensorView take(const std::string& name, const Shape& shape);
  // The first of the names that exists, in any of the shapes: they must hold as many elements.
  TensorView take_any(const std::vector<std::string>& names, const std::vector<Shape>& shapes);

  // Takes a weight matrix: what take() does of (rows, K) or, where there is no tensor of that name
  // but one in a format of kernels/weight_formats.h, that: NAME.FORMAT, as many bytes as its rows
  // take, with NAME.FORMAT.scales in addition where the format has scales. shape: of a tensor of
  // that name, whose last extent is K; empty: (rows, K).
  StoredMatrix take_matrix(const std::string& name, int64_t rows, int64_t K,
                           const Shape& shape = {});

  // These may be there untaken, e.g. "lm_head.weight" with tied embeddings.
  void allow_extra(const std::vector<std::string>& names);

  // Tensors whose names begin with one of these may be there untaken -> how many there are.
  int64_t skip(const std::vector<std::string>& prefixes);

  bool ok() const { return missing_.count == 0 && misfit_.count == 0; }  // so far

  // Has finish() write the tensor as F32 or BF16 to `device` (count() elements, memory of the
  // backend, which stays where it is until then). Does nothing if the view is not present.
  void copy_on_finish(const TensorView& view, DType to, Backend& backend, void* device);

  // The same for a matrix in a format: to rows of these sizes. scales: null where it has none.
  void copy_on_finish(const StoredMatrix& matrix, const WeightFormat& to, Backend& backend,
                      void* data, void* scales);
  // The same column by column, see WeightFormat::transpose: to the outputs from `first` on of a
  // matrix with so many. Its rows, the outputs and `first` are multiples of to.outputs_together.
  void copy_transposed_on_finish(const StoredMatrix& matrix, const WeightFormat& to,
                                 Backend& backend, void* data, void* scales, int64_t first,
                                 int64_t outputs);

  // From now on LinearWeights of a backend that computes on the host use in place what can_map()
  // allows, instead of a copy.
  void map_weights() { mapping_ = true; }
  // Whether the matrix is stored in the format, on 64-byte boundaries.
  bool can_map(const StoredMatrix& matrix, const WeightFormat& format) const;
  // Notes that the matrix is used in place: finish() only hashes it -> what holds its files; empty
  // of models that are loaded on paper.
  using Files = std::vector<std::shared_ptr<const SafetensorsFile>>;
  Files map_matrix(const StoredMatrix& matrix, const WeightFormat& format);
  size_t mapped_bytes() const { return mapped_bytes_; }  // of all that is used in place

  // From now on finish() makes no copies: for models that are loaded on paper.
  void leave_out_copies() { copying_ = false; }

  // From now on no tensor is hashed, and the fingerprint is of the config alone: for measuring what
  // hashing costs.
  void leave_out_fingerprint() { hashes_.leave_out(); }

  // Throws std::runtime_error naming all tensors that are missing, misshapen or unused; else
  // makes the copies and lets go of the file pages. To be called once, last.
  // progress: called now and then on this thread; bytes as stored.
  void finish(const Progress& progress = {});

  // After finish(): what the config says and what the tensors that were taken hold, as they are
  // stored, in 32 hexadecimal digits. It does not depend on how the config is laid out, nor on how
  // the tensors are spread over files, nor on what they are loaded as; of random weights it is the
  // config and the seed. Empty where the copies were left out.
  const std::string& fingerprint() const { return fingerprint_; }

  // The formats of the matrices that were loaded, the one of most bytes first, then those of the
  // others that have scales: "bf16", "int4, int8".
  std::string weight_formats() const;

  // The tensors that adapters can change, of the model that was loaded: all are there with its last
  // matrix. Does not change once the model is loaded.
  AdapterTargets& adapter_targets() { return *targets_; }
  std::shared_ptr<const AdapterTargets> shared_adapter_targets() const { return targets_; }

  // How fast the copies of finish() went. Reading, which includes any conversion, and copying to
  // the device go on at the same time.
  struct Times {
    uint64_t bytes = 0;       // that arrived on the device
    double seconds = 0;       // all in all
    double reading = 0;       // seconds of them that the host was reading
    double copying_rate = 0;  // bytes a second of one copy alone; 0: not measured
  };
  const Times& times() const { return times_; }

 private:
  struct Tensor {
    TensorView view;
    bool used = false;
  };
  // Of a tensor, element by element, or of a matrix into a format, row by row.
  struct Copy {
    TensorView from;
    DType to;                              // kPacked: as it is stored
    Backend* backend;                      // null: none is made, as the tensor is used in place
    void* device;                          // (from.count()) of `to`
    StoredMatrix matrix = {};              // row by row: that `from` is of
    const WeightFormat* format = nullptr;  // row by row: into this
    void* scales = nullptr;                // row by row: where they go
    int64_t first = 0, outputs = 0;        // not 0 outputs: transposed, from the first one on
    size_t piece_bytes() const;
  };
  // Messages about one kind of problem; the first few are stored.
  struct Problems {
    void add(const std::string& sentence);
    std::string text(std::string_view one, std::string_view many) const;
    size_t count = 0;
    std::vector<std::string> first;
  };

  Checkpoint() = default;
  void open_single(const std::filesystem::path& file);
  void open_sharded(const std::filesystem::path& index);
  void add_file(std::shared_ptr<SafetensorsFile> file);
  Tensor* lookup(std::string_view name);
  TensorView generate(const std::string& name, const Shape& shape);
  TensorView take_found(Tensor& tensor, const std::vector<Shape>& shapes);
  void note_missing(const std::vector<std::string>& names, const std::vector<Shape>& shapes);
  void check_all_used();
  void count_bytes(const StoredMatrix& matrix, const WeightFormat& to);
  TensorView take_bytes(const std::string& name, int64_t rows, int64_t row_bytes);
  void make_copies(const Progress& progress);
  void take_fingerprint();

  nlohmann::json config_;
  std::string config_file_;
  std::string where_;
  std::string weights_file_;  // model.safetensors or the index: where a missing tensor is missing
  bool random_ = false;
  uint64_t seed_ = 0;
  std::vector<std::shared_ptr<SafetensorsFile>> files_;
  std::unordered_map<std::string_view, Tensor> tensors_;  // keys live in files_
  std::set<std::string> generated_names_;
  std::set<std::string> allowed_extra_;
  Problems missing_, misfit_;
  bool copying_ = true, mapping_ = false;
  size_t mapped_bytes_ = 0;
  std::vector<Copy> copies_;
  std::map<const WeightFormat*, int64_t> format_bytes_;  // of the matrices
  std::shared_ptr<AdapterTargets> targets_ = std::make_shared<AdapterTargets>();
  Times times_;
  TensorHashes hashes_;  // of tensors that are read here
  std::string fingerprint_;
};

}  // namespace recurve
