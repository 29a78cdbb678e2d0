#include "tests/emulated_cuda/nccl_exchange.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>

namespace emulated_cuda {

namespace {

/// The messages of one group while they are under way.
class Exchange {
 public:
  Exchange(std::shared_ptr<ncclComm> communicator, std::vector<Call> calls)
      : communicator_(std::move(communicator)), number_(++communicator_->queued), calls_(std::move(calls))
  {
  }

  /// As advance(); when MPI fails, so does the communicator.
  bool advance_or_fail()
  {
    try {
      return advance();
    } catch (const std::runtime_error& error) {
      fail(ncclSystemError, error.what());
      return false;
    }
  }

  /// Begins it, or looks after it. @return  whether it has ended.
  bool advance()
  {
    ncclComm& communicator = *communicator_;
    // Operations of one communicator run one after the other, in the order in which they were queued.
    if (number_ != communicator.ended + 1) return false;
    if (communicator.device->error != cudaSuccess) communicator.error = ncclUnhandledCudaError;
    if (communicator.error == ncclSuccess && !communicator.aborted) {
      if (!begun_ && !begin()) return false;
      if (!take_messages() || !all_arrived()) return false;
      if (communicator.error == ncclSuccess) finish();
    }
    ++communicator.ended;
    return true;
  }

  /// Whether its buffers belong to messages that will not be waited for any more.
  bool is_forgotten() const { return communicator_->aborted || communicator_->error != ncclSuccess; }

 private:
  /// One message to receive.
  struct Incoming {
    int kind;
    Call::Message expected;
    std::vector<std::byte> data;
    bool matched = false;
  };

  bool is_on_device(const void* data, std::size_t bytes) const
  {
    return bytes == 0 || communicator_->device->memory.find(data, bytes) != nullptr ||
           machine().pinned.find(data, bytes) != nullptr;
  }

  void fail(ncclResult_t code, const std::string& why)
  {
    communicator_->error = nccl_error(code, why);
    say("NCCL: " + why);
  }

  bool begin();
  bool take_messages();
  bool all_arrived();
  void finish();

  std::shared_ptr<ncclComm> communicator_;
  std::uint64_t number_;
  std::vector<Call> calls_;
  bool begun_ = false;
  std::vector<std::vector<std::byte>> outgoing_;
  std::vector<Incoming> incoming_;
  std::vector<MPI_Request> requests_;
};

/// Copies what is sent to the host and sends it. A send ends when the other side takes it: NCCL promises no more.
bool Exchange::begin()
{
  for (const Call& call : calls_) {
    bool valid = is_on_device(call.output, call.output_bytes);
    for (const Call::Message& message : call.sent) valid = valid && is_on_device(message.data, message.bytes);
    if (valid) continue;
    communicator_->device->lose(cudaErrorIllegalAddress,
                                "NCCL: illegal address: a buffer is not memory of the device");
    communicator_->error = ncclUnhandledCudaError;
    return true;
  }
  open_device_memory();
  for (const Call& call : calls_) {
    for (const Call::Message& message : call.sent) {
      const auto* const data = static_cast<const std::byte*>(message.data);
      const std::vector<std::byte>& copy = outgoing_.emplace_back(data, data + message.bytes);
      require_mpi(MPI_Issend(copy.data(), static_cast<int>(copy.size()), MPI_BYTE, message.peer, call.kind,
                             communicator_->messages, &requests_.emplace_back()),
                  "sending");
    }
    for (const Call::Message& message : call.received) incoming_.push_back({call.kind, message, {}});
  }
  begun_ = true;
  return true;
}

/// Takes messages that are there, in order. @return  whether all have been taken.
bool Exchange::take_messages()
{
  std::set<std::pair<int, int>> absent;  // kind and peer: a later message is not taken before an earlier one
  for (Incoming& message : incoming_) {
    if (message.matched || absent.contains({message.kind, message.expected.peer})) continue;
    int is_there = 0;
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status status{};
    require_mpi(
        MPI_Improbe(message.expected.peer, message.kind, communicator_->messages, &is_there, &handle, &status),
        "looking for a message");
    if (is_there == 0) {
      absent.insert({message.kind, message.expected.peer});
      continue;
    }
    int bytes = 0;
    require_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "measuring a message");
    message.data.resize(static_cast<std::size_t>(bytes));
    require_mpi(MPI_Imrecv(message.data.data(), bytes, MPI_BYTE, &handle, &requests_.emplace_back()), "receiving");
    message.matched = true;
    if (message.data.size() != message.expected.bytes)
      fail(ncclInternalError,
           fmt::format("rank {} expects {} bytes from rank {}, which sends {}", communicator_->rank,
                       message.expected.bytes, message.expected.peer, bytes));
  }
  return absent.empty();
}

bool Exchange::all_arrived()
{
  int all = 0;
  require_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all, MPI_STATUSES_IGNORE),
              "looking after messages");
  return all != 0;
}

void Exchange::finish()
{
  open_device_memory();
  auto next = incoming_.begin();
  for (const Call& call : calls_) {
    Received received;
    for (std::size_t i = 0; i < call.received.size(); ++i) received.push_back(std::move((next++)->data));
    call.finish(received);
  }
}

}  // namespace

void queue_exchange(const std::shared_ptr<ncclComm>& communicator, cudaStream_t stream, std::vector<Call> calls)
{
  const auto exchange = std::make_shared<Exchange>(communicator, std::move(calls));
  enqueue(stream, {"NCCL",
                   [exchange] {
                     if (!exchange->advance_or_fail()) return false;
                     // MPI may still use the buffers of abandoned messages.
                     static std::vector<std::shared_ptr<Exchange>>& forgotten =
                         *new std::vector<std::shared_ptr<Exchange>>;
                     if (exchange->is_forgotten()) forgotten.push_back(exchange);
                     return true;
                   },
                   false});
}

void require_mpi(int code, const char* doing)
{
  if (code != MPI_SUCCESS) throw std::runtime_error(std::string("emulated NCCL: MPI failed while ") + doing);
}

}  // namespace emulated_cuda
