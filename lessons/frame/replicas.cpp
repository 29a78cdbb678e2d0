#include "lessons/frame/replicas.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/digest.hpp"
#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/collectives/subtrees.hpp"
#include "common/files/output_file.hpp"
#include "common/files/sealed_file.hpp"
#include "common/messages/agreement.hpp"
#include "common/messages/job_report.hpp"

namespace rankwise {

void all_reduce_sum(LossSum& loss, Group& group)
{
  auto nats = loss.nats.lanes();
  std::array<std::int64_t, loss_numbers> numbers{};
  *std::ranges::copy(nats, numbers.begin()).out = loss.valid_tokens;
  all_reduce_sum(std::span<std::int64_t>(numbers), group);
  std::copy_n(numbers.begin(), nats.size(), nats.begin());
  loss = {decltype(loss.nats)::from_lanes(nats), numbers.back()};
}

void check_share(std::int64_t global_batch, int ranks)
{
  if (global_batch % ranks == 0) return;
  throw UserError(
      fmt::format("--global-batch={} cannot be shared out among {} ranks.", global_batch, ranks),
      fmt::format("Every rank computes the same number of sequences. Use a multiple of {}, or start another "
                  "number of ranks.",
                  ranks));
}

void check_share(const LessonOptions& options, const Layout& layout)
{
  const auto replicas = static_cast<int>(layout.dp);
  if (options.arithmetic == Sums::fast || !layout.uneven) return check_share(options.global_batch, replicas);
  if (options.global_batch < replicas)
    throw UserError(
        fmt::format("--global-batch={} has fewer sequences than there are data-parallel ranks, {}.",
                    options.global_batch, replicas),
        fmt::format("Every rank computes at least one. Use --global-batch={} or more, or start fewer ranks.",
                    replicas));
  if (options.algorithm() == Algorithm::shared && replicas > 1 &&
      !DealtLeaves(options.global_batch, replicas).are_balanced())
    throw UserError(fmt::format("--collectives=shared cannot sum {} sequences of {} ranks in exact arithmetic.",
                                options.global_batch, replicas),
                    "The ranks have different numbers of sums to exchange, and would have to place all of them in\n"
                    "shared memory together. Use --collectives=halving, or powers of two.");
}

void check_alike(const OptionTable& options)
{
  if (machine_of_ranks().size() == 1) return;
  std::vector<std::string> read;
  std::vector<std::pair<std::string, std::string>> facts;
  for (const NamedFile& file : options.files()) {  // the options that --config sets are compared themselves
    const bool is_input = file.use == FileUse::read && !file.asked.starts_with("--config=");
    if (is_input || file.asked.starts_with("--checkpoint="))
      read.push_back(fmt::format("{} (content {:.16})", file.asked, content_digest(file.path)));
    if (file.asked.starts_with("--checkpoint="))  // rank 0 has just made its lock
      facts.emplace_back("the folder of " + file.asked + ", a file that all of them write",
                         content_digest(name_beside(file.path, ".", ".lock")).empty()
                             ? "a folder without this job's lock"
                             : "the folder with this job's lock");
  }
  facts.emplace(facts.begin(), "the files that they read", fmt::format("{}", fmt::join(read, ", ")));
  const nlohmann::json all = options.json();
  for (const auto& [name, value] : all.items())
    facts.emplace_back("--" + name, value.is_string() ? value.get<std::string>() : json_text(value));
  check_agreement(Communicator::world(), facts);
}

namespace {

/// A fast hash of elements of any type: that of the hashes of its pieces, of which only one is copied at a time.
std::uint64_t hash_of(Stream& stream, const Tensor& elements)
{
  constexpr std::int64_t piece_bytes = 1 << 20;
  const Tensor bytes(elements.raw(), DType::u8, {elements.bytes()});
  std::vector<std::uint64_t> hashes;
  for (std::int64_t first = 0; first < bytes.elements(); first += piece_bytes) {
    const auto piece = bytes.slice({first, std::min(piece_bytes, bytes.elements() - first)});
    const std::vector<std::uint8_t> host = to_host<std::uint8_t>(stream, piece);
    hashes.push_back(fast_hash(std::as_bytes(std::span(host))));
  }
  return fast_hash(std::as_bytes(std::span(hashes)));
}

}  // namespace

void check_replicas(Stream& stream, const Tensor& parameters, const std::string& when)
{
  const std::vector<std::uint64_t> hashes =
      gather_all(hash_of(stream, parameters), job_ranks(), "comparing what ranks have");
  std::vector<std::size_t> different;
  for (std::size_t r = 1; r < hashes.size(); ++r)
    if (hashes[r] != hashes[0]) different.push_back(r);
  check(different.empty(),
        fmt::format("{} the parameters of rank {} differ from those of rank 0: the replicas have "
                    "not made the same updates",
                    when, fmt::join(different, ", ")));
}

std::string replica_hash(Stream& stream, const Tensor& parameters)
{
  return fmt::format("{:016x}", hash_of(stream, parameters));
}

bool same_on_all_ranks(const std::string& text, Group& group)
{
  std::string first = text;
  broadcast(first, 0, group);
  std::int64_t different = first == text ? 0 : 1;
  all_reduce_sum(different, group);
  return different == 0;
}

bool same_on_all_ranks(const std::string& text)
{
  std::string first = text;
  check_mpi(MPI_Bcast(first.data(), static_cast<int>(first.size()), MPI_CHAR, 0, job_ranks()),
            "comparing what ranks have");
  return on_all_ranks(first == text);
}

}  // namespace rankwise
