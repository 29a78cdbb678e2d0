// gpt2/files/checkpoint.hpp on one device: blocks, full disks, and files that are not what they should be.

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>

#include "common/files/hdf5.hpp"
#include "common/files/sealed_file.hpp"
#include "common/memory/device.hpp"
#include "gpt2/files/checkpoint.hpp"
#include "tests/catch.hpp"
#include "tests/fuzz.hpp"
#include "tests/scratch_folder.hpp"

using namespace rankwise;

namespace {

constexpr FileKind kind{.name = "rankwise checkpoint", .version = 1, .called = "a checkpoint"};
const ModelConfig config{"tiny", 1, 2, 8, 4, 11, {}};

/// The host's stream; remembers the largest copy.
class WatchedStream final : public Stream {
 public:
  void zero(const Tensor& to) override { stream_->zero(to); }
  void copy(const Tensor& to, const Tensor& from) override
  {
    largest_ = std::max(largest_, to.elements());
    stream_->copy(to, from);
  }
  void add(const Tensor& to, const Tensor& from) override { stream_->add(to, from); }
  void synchronise() override { stream_->synchronise(); }
  Event record() override { return {}; }
  void wait(const Event&) override {}
  std::int64_t largest() const { return largest_; }

 private:
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->make_stream();
  std::int64_t largest_ = 0;
};

/// A whole model whose flat vectors count from different numbers.
struct Whole {
  explicit Whole(const ModelConfig& c) : table(c)
  {
    for (std::size_t s = 0; s < 3; ++s)
      for (std::int64_t i = 0; i < table.elements(); ++i)
        values[s].push_back(static_cast<float>(i + 1000 * static_cast<std::int64_t>(s)));
    for (const Parameter& p : table.entries())  // padding
      for (std::int64_t i = p.shape.elements(); i < p.stored.elements(); ++i)
        for (std::vector<float>& v : values) v[static_cast<std::size_t>(p.elements.first + i)] = 0;
  }
  Shard shard()
  {
    const auto view = [&](std::size_t s) { return Tensor(std::span(values[s]), {table.elements()}); };
    return {table, {0, table.elements()}, view(0), view(1), view(2)};
  }
  ParameterTable table;
  std::vector<float> values[3];
};

void save(const std::string& path, std::int64_t step, const ModelConfig& c = config)
{
  WatchedStream stream;
  Whole whole(c);
  create_checkpoint(path, {.config = c, .step = step, .updates = step, .options = {{"seed", "1"}}});
  write_checkpoint(path, stream, whole.shard());
  commit_checkpoint(path);
}

void save_weights(const std::string& path)
{
  WatchedStream stream;
  Whole whole(config);
  create_checkpoint(path, {.config = config, .moments = false});
  Shard weights = whole.shard();
  weights.first_moments = weights.second_moments = {};
  write_checkpoint(path, stream, weights);
  commit_checkpoint(path);
}

/// Whether saving to a disk that takes files of at most @p bytes bytes fails and says why. It is tried in a process of its
/// own, because HDF5 crashes when it ends after a file that it could not close.
bool save_fails_for(std::size_t bytes, const std::string& path)
{
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, bytes};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    try {
      save(path, 2);
      _exit(1);
    } catch (const Error& error) {
      _exit(Contains("File too large").match(error.what()) ? 0 : 3);
    }
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

/// Applies @p change to the structure of the file, and seals the result.
void change(const std::string& path, const std::function<void(const Hdf5Object&)>& change)
{
  std::filesystem::rename(path, temporary_name(path));
  {
    Hdf5Object file = open_hdf5(temporary_name(path), H5F_ACC_RDWR);
    change(file);
    file.close("change a checkpoint");
  }
  commit_sealed(path, kind);
}

void check_refused(const std::string& path, const std::string& words)
{
  CHECK_THROWS_AS(check_checkpoint(path, "--initial=" + path), UserError);
  CHECK_THROWS_WITH(check_checkpoint(path, "--initial=" + path),
                    Contains("--initial=" + path + " ") && Contains(words) &&
                        Contains("made by a run with --checkpoint=FILE.h5"));
}

/// Puts a dataset of @p type and @p shape in the place of the object @p name, with its storage as @p properties say.
void put_dataset(
    const Hdf5Object& file, const std::string& name, hid_t type, const std::vector<hsize_t>& shape,
    const std::function<void(hid_t)>& properties = [](hid_t) {})
{
  if (H5Lexists(file.id(), name.c_str(), H5P_DEFAULT) > 0) H5Ldelete(file.id(), name.c_str(), H5P_DEFAULT);
  const Hdf5Object space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), H5Sclose,
                         "space");
  const Hdf5Object list(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "properties");
  H5Pset_alloc_time(list.id(), H5D_ALLOC_TIME_EARLY);
  properties(list.id());
  const Hdf5Object dataset(
      H5Dcreate2(file.id(), name.c_str(), type, space.id(), H5P_DEFAULT, list.id(), H5P_DEFAULT), H5Dclose,
      "dataset");
}

template <class Value>
void put_attribute(const Hdf5Object& object, const std::string& name, const Value& value)
{
  if (has_attribute(object, name)) H5Adelete(object.id(), name.c_str());
  write_attribute(object, name, value);
}

const std::string some_tensor = "parameters/h.0.mlp.c_fc.weight";  // (8, 32)

}  // namespace

TEST_CASE("checkpoint: blocks of a MiB at most, whole rows or a piece of one, and all of them come back")
{
  const ScratchFolder folder;
  const ModelConfig large{"large", 1, 2, 512, 4, 1500, {}};  // its largest tensor has 4 x 512 x 512 elements
  Whole whole(large), found(large);
  WatchedStream stream;
  create_checkpoint(folder / "model.h5", {.config = large, .step = 1, .updates = 1, .options = {}});
  write_checkpoint(folder / "model.h5", stream, whole.shard());
  commit_checkpoint(folder / "model.h5");
  for (std::vector<float>& v : found.values) std::fill(v.begin(), v.end(), -1.0F);
  read_checkpoint(folder / "model.h5", stream, found.shard());
  for (int s = 0; s < 3; ++s) CHECK((found.values[s] == whole.values[s]));
  CHECK(stream.largest() == 1 << 18);
}

TEST_CASE("checkpoint: weights only")
{
  const ScratchFolder folder;
  const std::string path = folder / "weights.h5";
  save_weights(path);
  const CheckpointInfo info = check_checkpoint(path, "--initial=" + path);
  CHECK(!info.moments);
  CHECK(info.step == 0);
  WatchedStream stream;
  Whole whole(config), found(config);
  Shard weights = found.shard();
  weights.first_moments = weights.second_moments = {};
  read_checkpoint(path, stream, weights);
  CHECK((found.values[0] == whole.values[0]));
  CHECK_THROWS_AS(read_checkpoint(path, stream, found.shard()), Error);
}

TEST_CASE("checkpoint: on a disk that is full saving fails with the reason, and the previous one is kept")
{
  const ScratchFolder folder;
  const std::string path = folder / "model.h5";
  save(path, 1);
  const std::string before = read_file(path);
  for (std::size_t bytes = 0; bytes < before.size(); bytes += 1 + before.size() / 40) {
    INFO("bytes for " << bytes << " of " << before.size() << " bytes");
    CHECK(save_fails_for(bytes, path));
    CHECK(check_checkpoint(path, path).step == 1);
    CHECK(folder.files() == 1);
  }
  save(path, 2);
  CHECK(check_checkpoint(path, path).step == 2);
}

TEST_CASE("checkpoint: a folder that cannot be written is an error")
{
  const ScratchFolder folder;
  CHECK_THROWS_AS(save(folder / "no/such/folder.h5", 1), Error);
}

TEST_CASE("check_checkpoint: what has no seal or another one is refused")
{
  const ScratchFolder folder;
  const std::string path = folder / "file.h5";
  check_refused(path, "does not exist");
  create_hdf5(path).close("close");
  check_refused(path, "without Rankwise's seal");
  save(path, 1);
  std::filesystem::rename(path, temporary_name(path));
  commit_sealed(path, {.name = "rankwise tokens", .version = 2, .called = ""});
  check_refused(path, "kind \"rankwise tokens\"");
  make_file(temporary_name(path), std::string(5000, 'x'));
  commit_sealed(path, kind);
  check_refused(path, "is not a complete checkpoint");
}

TEST_CASE("check_checkpoint: a structure that is not that of its model is refused by name")
{
  using Change = std::function<void(const Hdf5Object&)>;
  const auto remove = [](const std::string& name) {
    return [name](const Hdf5Object& f) { H5Ldelete(f.id(), name.c_str(), H5P_DEFAULT); };
  };
  const auto shaped = [](hid_t type, const std::vector<hsize_t>& shape) {
    return [type, shape](const Hdf5Object& f) { put_dataset(f, some_tensor, type, shape); };
  };
  const auto stored = [](const std::vector<hsize_t>& shape, const std::function<void(hid_t)>& properties) {
    return [shape, properties](const Hdf5Object& f) {
      put_dataset(f, some_tensor, H5T_IEEE_F32LE, shape, properties);
    };
  };
  const auto number = [](const char* name, std::int64_t value) {
    return [name, value](const Hdf5Object& f) { put_attribute(f, name, value); };
  };
  const hsize_t chunk[] = {8, 32};
  const auto sparse = [&](hid_t p) { H5Pset_chunk(p, 2, chunk), H5Pset_alloc_time(p, H5D_ALLOC_TIME_LATE); };
  const std::vector<std::pair<Change, std::string>> cases{
      {remove("parameters"), "group parameters: it is missing"},
      {remove("second_moments"), "group second_moments: it is missing"},
      {remove("options"), "group options: it is missing"},
      {remove(some_tensor), "holds 15 tensors"},
      {remove("first_moments/ln_f.bias"), "dataset ln_f.bias: it is missing"},
      {shaped(H5T_IEEE_F32LE, {32, 8}), "h.0.mlp.c_fc.weight has the shape (32, 8), not (8, 32)"},
      {shaped(H5T_IEEE_F32LE, {256}), "has the shape (256), not (8, 32)"},
      {shaped(H5T_IEEE_F32LE, {8, 32, 1}), "3 dimensions"},
      {shaped(H5T_IEEE_F32LE, {}), ""},
      {shaped(H5T_IEEE_F64LE, {8, 32}), "h.0.mlp.c_fc.weight is not f32"},
      {shaped(H5T_STD_I32LE, {8, 32}), "is not f32"},
      {stored({8, 32}, sparse), "not all of it is stored"},
      {stored({hsize_t{1} << 40, hsize_t{1} << 20}, sparse), "not all of it is stored"},
      {stored({8, 32}, [&](hid_t p) { H5Pset_chunk(p, 2, chunk), H5Pset_shuffle(p); }), "it is compressed"},
      {stored({8, 32}, [&](hid_t p) { H5Pset_external(p, "/etc/passwd", 0, 1024); }),
       "it is stored in another file"},
      {stored({8, 32}, [&](hid_t p) { H5Pset_layout(p, H5D_COMPACT); }), "neither contiguous nor chunked"},
      {[](const Hdf5Object& f) { put_dataset(f, "parameters/extra", H5T_IEEE_F32LE, {3}); }, "holds 17 tensors"},
      {[](const Hdf5Object& f) { put_dataset(f, "second_moments/extra", H5T_IEEE_F32LE, {3}); },
       "second_moments/extra is not a tensor of its model"},
      {[](const Hdf5Object& f) {
         H5Lmove(f.id(), some_tensor.c_str(), f.id(), "away", H5P_DEFAULT, H5P_DEFAULT);
         H5Lcreate_soft("/away", f.id(), some_tensor.c_str(), H5P_DEFAULT, H5P_DEFAULT);
       },
       "a link to something else"},
      {[](const Hdf5Object& f) {
         H5Ldelete(f.id(), "first_moments", H5P_DEFAULT);
         H5Lcreate_external("other.h5", "/", f.id(), "first_moments", H5P_DEFAULT, H5P_DEFAULT);
       },
       "a link to something else"},
      {[](const Hdf5Object& f) { put_dataset(f, "first_moments", H5T_IEEE_F32LE, {3}); }, "group first_moments"},
      {number("layers", 0), "layers is 0"},
      {number("layers", std::int64_t{1} << 40), "layers is 1099511627776"},
      {number("layers", 1 << 24), "16777216 layers"},
      {number("channels", 9), ""},
      {number("heads", -2), "heads is -2"},
      {number("step", 0), "0 steps"},
      {number("updates", -1), "-1 updates"},
      {[](const Hdf5Object& f) { put_attribute(f, "step", std::string("7")); },
       "attribute step: it is not an integer"},
      {[](const Hdf5Object& f) { H5Adelete(f.id(), "updates"); }, "attribute updates"},
      {[](const Hdf5Object& f) { H5Adelete(f.id(), "context"); }, "attribute context"},
      {[](const Hdf5Object& f) { put_attribute(open_group(f, "options"), "seed", std::int64_t{1}); }, "not text"},
  };
  const ScratchFolder folder;
  for (const auto& [mutation, words] : cases) {
    save(folder / "file.h5", 1);
    change(folder / "file.h5", mutation);
    check_refused(folder / "file.h5", words);
  }
}

TEST_CASE("check_checkpoint: random damage is refused before HDF5 sees it")
{
  const ScratchFolder folder;
  save(folder / "whole.h5", 1);
  const std::string whole = read_file(folder / "whole.h5");
  Draw draw(2);
  for (int i = 0; i < fuzz_inputs(300); ++i) {
    make_file(folder / "file.h5", damaged(whole, draw));
    CHECK_THROWS_WITH(check_checkpoint(folder / "file.h5", "file.h5"), !Contains("not a complete checkpoint"));
  }
}

TEST_CASE("check_checkpoint: random structures under a valid seal are refused, or can be read")
{
  const ScratchFolder folder;
  const std::string path = folder / "file.h5";
  save(folder / "whole.h5", 1);
  const std::vector<std::string> groups{"parameters", "first_moments", "second_moments", "options"};
  const std::vector<std::string> attributes{"layers",     "heads", "channels", "context",
                                            "vocabulary", "step",  "updates"};
  const std::vector<hid_t> types{H5T_IEEE_F32LE, H5T_IEEE_F32BE, H5T_IEEE_F64LE,
                                 H5T_STD_U8LE,   H5T_STD_I64BE,  H5T_C_S1};
  const std::vector<Parameter> tensors = ParameterTable(config).entries();
  Draw draw(3);
  const auto mutate = [&](const Hdf5Object& file) {
    const Parameter& p = tensors[draw.below(tensors.size())];
    const std::string name = groups[draw.below(3)] + "/" + p.name;
    std::vector<hsize_t> shape;
    for (int i = 0; i < p.shape.rank(); ++i) shape.push_back(static_cast<hsize_t>(p.shape[i]));
    const std::string& attribute = attributes[draw.below(attributes.size())];
    switch (draw.below(8)) {
      case 0:
        H5Ldelete(file.id(), (draw.below(4) == 0 ? groups[draw.below(4)] : name).c_str(), H5P_DEFAULT);
        break;
      case 1:
        put_dataset(file, name, types[draw.below(types.size())], shape);
        break;
      case 2:
        shape[draw.below(shape.size())] = draw.below(2) == 0 ? draw.below(40) : hsize_t{1} << draw.below(30);
        put_dataset(file, name, H5T_IEEE_F32LE, shape, [&](hid_t list) {
          std::vector<hsize_t> chunk;
          for (const hsize_t extent : shape) chunk.push_back(1 + draw.below(std::clamp<hsize_t>(extent, 1, 100)));
          H5Pset_chunk(list, static_cast<int>(chunk.size()), chunk.data());
          H5Pset_alloc_time(list, H5D_ALLOC_TIME_LATE);
        });
        break;
      case 3:
        put_dataset(file, name + std::to_string(draw.below(3)), H5T_IEEE_F32LE, {draw.below(10)});
        break;
      case 4:
        put_attribute(file, attribute, static_cast<std::int64_t>(draw.below(40)) - 5);
        break;
      case 5:
        put_attribute(file, attribute, static_cast<std::int64_t>(std::uint64_t{1} << draw.below(64)));
        break;
      case 6:
        put_attribute(file, attribute, std::string(draw.below(2000), 'x'));
        break;
      default:
        H5Adelete(file.id(), attribute.c_str());
    }
  };
  int accepted = 0;
  const int inputs = fuzz_inputs(300);
  for (int i = 0; i < inputs; ++i) {
    std::filesystem::copy_file(folder / "whole.h5", path, std::filesystem::copy_options::overwrite_existing);
    change(path, mutate);
    try {
      const CheckpointInfo info = check_checkpoint(path, "--initial=" + path);
      WatchedStream stream;
      Whole whole(info.config);
      Shard shard = whole.shard();
      if (!info.moments) shard.first_moments = shard.second_moments = {};
      read_checkpoint(path, stream, shard);
      ++accepted;
    } catch (const UserError&) {
    }
  }
  CHECK(accepted > 0);  // another step, f32 in the other byte order
  CHECK(accepted < inputs / 4);
}
