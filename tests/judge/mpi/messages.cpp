// MPI's calls for messages between two ranks.

#include <algorithm>
#include <string>
#include <utility>

#include "tests/judge/mpi/handles.hpp"

using namespace judge;

namespace {

/// What is under way; null where nothing is.
Request* under_way(MPI_Request handle)
{
  if (handle == MPI_REQUEST_NULL) return nullptr;
  auto* request = object_of<Request>(handle);
  return request->start ? request->started : request;
}

/// Takes note of a complete request and forgets it; a persistent one can be started again.
void end(MPI_Request* handle, MPI_Status* status)
{
  Request* request = under_way(*handle);
  if (request == nullptr) return fill(status, MPI_ANY_SOURCE, MPI_ANY_TAG, 0);
  const int source =
      request->bytes == 0 && request->source < 0 ? MPI_ANY_SOURCE : request->communicator->rank_of(request->source);
  fill(status, source, request->tag, request->bytes);
  auto* own = object_of<Request>(*handle);
  own->started = nullptr;
  if (own == request) *handle = MPI_REQUEST_NULL;
  delete request;
}

/// Whether there is something that can be ended.
bool has_ended(MPI_Request handle)
{
  return under_way(handle) != nullptr && under_way(handle)->done;
}

void wait_for(Request* request)
{
  connection().wait([request] { return request->done; }, request->what);
}

MPI_Status* at(MPI_Status* statuses, int i)
{
  return statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : statuses + i;
}

/// A request that is complete at once: of a message to or from MPI_PROC_NULL.
Request* nothing(MPI_Comm comm)
{
  return new Request{.done = true, .source = MPI_PROC_NULL, .tag = MPI_ANY_TAG, .communicator = &of(comm)};
}

Request* start_send(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                    const char* call)
{
  return to == MPI_PROC_NULL ? nothing(comm)
                             : connection().send(of(comm), elements(data, count, type), to, tag, call);
}

Request* start_receive(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, const char* call)
{
  return from == MPI_PROC_NULL ? nothing(comm)
                               : connection().receive(of(comm), elements(data, count, type), from, tag, call);
}

/// The envelope of a message that was found.
void fill_envelope(MPI_Status* status, const Message& message, MPI_Comm comm)
{
  fill(status, of(comm).rank_of(message.source), message.tag, message.data.size());
}

Message* wait_for_message(int from, int tag, MPI_Comm comm, bool takes, const char* call)
{
  Message* found = nullptr;
  connection().wait([&] { return (found = connection().find(of(comm), from, tag, takes)) != nullptr; },
                    message_of(from, call, tag));
  return found;
}

/// Returns when one of them can be ended, or at once where none is under way.
void wait_for_any(int count, MPI_Request requests[], const char* call)
{
  if (std::any_of(requests, requests + count, under_way))
    connection().wait([=] { return std::any_of(requests, requests + count, has_ended); },
                      std::string("one of several messages (") + call + ")");
}

/// What MPI_Buffer_attach was given, and the messages for which it is: the judge has them already.
struct Buffered {
  std::mutex mutex;
  void* memory = nullptr;
  int bytes = 0;
  std::vector<Request*> messages;
} buffered;

}  // namespace

#define RANKWISE_SEND(NAME, STARTS)                                                                           \
  RANKWISE_CALL(STARTS, const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,       \
                MPI_Request* request)                                                                         \
  {                                                                                                           \
    *request = handle_of<MPI_Request>(start_send(data, count, type, to, tag, comm, "MPI_" #STARTS));          \
    return MPI_SUCCESS;                                                                                       \
  }                                                                                                           \
  RANKWISE_CALL(NAME, const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm)         \
  {                                                                                                           \
    MPI_Request request = handle_of<MPI_Request>(start_send(data, count, type, to, tag, comm, "MPI_" #NAME)); \
    return PMPI_Wait(&request, MPI_STATUS_IGNORE);                                                            \
  }
RANKWISE_SEND(Send, Isend)
RANKWISE_SEND(Ssend, Issend)

RANKWISE_CALL(Irecv, void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request* request)
{
  *request = handle_of<MPI_Request>(start_receive(data, count, type, from, tag, comm, "MPI_Irecv"));
  return MPI_SUCCESS;
}

RANKWISE_CALL(Recv, void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status)
{
  MPI_Request request = handle_of<MPI_Request>(start_receive(data, count, type, from, tag, comm, "MPI_Recv"));
  return PMPI_Wait(&request, status);
}

RANKWISE_CALL(Send_init, const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request)
{
  const auto start = [=] { return start_send(data, count, type, to, tag, comm, "MPI_Send_init"); };
  *request = handle_of<MPI_Request>(new Request{.start = start});
  return MPI_SUCCESS;
}

RANKWISE_CALL(Recv_init, void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request* request)
{
  const auto start = [=] { return start_receive(data, count, type, from, tag, comm, "MPI_Recv_init"); };
  *request = handle_of<MPI_Request>(new Request{.start = start});
  return MPI_SUCCESS;
}

RANKWISE_CALL(Start, MPI_Request* handle)
{
  auto* request = *handle == MPI_REQUEST_NULL ? nullptr : object_of<Request>(*handle);
  if (request == nullptr || !request->start || request->started != nullptr)
    connection().abort(
        1, "MPI_Start was given a request that is not persistent, or has not ended since its last start");
  request->started = request->start();
  return MPI_SUCCESS;
}

RANKWISE_CALL(Startall, int count, MPI_Request requests[])
{
  for (int i = 0; i < count; ++i) PMPI_Start(&requests[i]);
  return MPI_SUCCESS;
}

RANKWISE_CALL(Request_free, MPI_Request* request)
{
  if (under_way(*request) != nullptr) connection().forget(under_way(*request));
  *request = MPI_REQUEST_NULL;
  return MPI_SUCCESS;
}

RANKWISE_CALL(Buffer_attach, void* memory, int bytes)
{
  buffered.memory = memory;
  buffered.bytes = bytes;
  return MPI_SUCCESS;
}

RANKWISE_CALL(Buffer_detach, void* memory, int* bytes)
{
  for (Request* request : std::exchange(buffered.messages, {})) wait_for(request);
  *static_cast<void**>(memory) = std::exchange(buffered.memory, nullptr);
  *bytes = std::exchange(buffered.bytes, 0);
  return MPI_SUCCESS;
}

RANKWISE_CALL(Bsend, const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
  const std::size_t needed = elements(data, count, type).size() + MPI_BSEND_OVERHEAD;
  if (needed > static_cast<std::size_t>(buffered.bytes))
    connection().abort(1, "MPI_Bsend needs " + std::to_string(needed) +
                              " bytes of memory; MPI_Buffer_attach gave " + std::to_string(buffered.bytes));
  Request* request = start_send(data, count, type, to, tag, comm, "MPI_Bsend");
  connection().forget(request);
  const std::lock_guard lock(buffered.mutex);
  buffered.messages.push_back(request);
  return MPI_SUCCESS;
}

RANKWISE_CALL(Ibsend, const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request)
{
  *request = handle_of<MPI_Request>(nothing(comm));
  return PMPI_Bsend(data, count, type, to, tag, comm);
}

RANKWISE_CALL(Sendrecv, const void* sent, int sent_count, MPI_Datatype sent_type, int to, int sent_tag,
              void* received, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status)
{
  MPI_Request receive =
      handle_of<MPI_Request>(start_receive(received, count, type, from, tag, comm, "MPI_Sendrecv"));
  MPI_Request send =
      handle_of<MPI_Request>(start_send(sent, sent_count, sent_type, to, sent_tag, comm, "MPI_Sendrecv"));
  PMPI_Wait(&receive, status);
  return PMPI_Wait(&send, MPI_STATUS_IGNORE);
}

RANKWISE_CALL(Sendrecv_replace, void* data, int count, MPI_Datatype type, int to, int sent_tag, int from, int tag,
              MPI_Comm comm, MPI_Status* status)
{
  const std::span<std::byte> values = elements(data, count, type);
  const std::vector<std::byte> copy(values.begin(), values.end());
  return PMPI_Sendrecv(copy.data(), count, type, to, sent_tag, data, count, type, from, tag, comm, status);
}

RANKWISE_CALL(Wait, MPI_Request* request, MPI_Status* status)
{
  if (under_way(*request) != nullptr) wait_for(under_way(*request));
  end(request, status);
  return MPI_SUCCESS;
}

RANKWISE_CALL(Waitall, int count, MPI_Request requests[], MPI_Status statuses[])
{
  for (int i = 0; i < count; ++i) PMPI_Wait(&requests[i], at(statuses, i));
  return MPI_SUCCESS;
}

RANKWISE_CALL(Waitany, int count, MPI_Request requests[], int* index, MPI_Status* status)
{
  int flag = 0;
  wait_for_any(count, requests, "MPI_Waitany");
  return PMPI_Testany(count, requests, index, &flag, status);
}

RANKWISE_CALL(Waitsome, int count, MPI_Request requests[], int* completed, int indices[], MPI_Status statuses[])
{
  wait_for_any(count, requests, "MPI_Waitsome");
  return PMPI_Testsome(count, requests, completed, indices, statuses);
}

RANKWISE_CALL(Test, MPI_Request* request, int* flag, MPI_Status* status)
{
  return PMPI_Testall(1, request, flag, status);
}

RANKWISE_CALL(Testall, int count, MPI_Request requests[], int* flag, MPI_Status statuses[])
{
  const std::lock_guard lock(connection().mutex());
  const auto done = [](MPI_Request r) { return under_way(r) == nullptr || has_ended(r); };
  *flag = connection().found(std::all_of(requests, requests + count, done)) ? 1 : 0;
  for (int i = 0; i < count && *flag != 0; ++i) end(&requests[i], at(statuses, i));
  return MPI_SUCCESS;
}

RANKWISE_CALL(Testany, int count, MPI_Request requests[], int* index, int* flag, MPI_Status* status)
{
  const std::lock_guard lock(connection().mutex());
  MPI_Request none = MPI_REQUEST_NULL;
  MPI_Request* const found = std::find_if(requests, requests + count, has_ended);
  *index = found == requests + count ? MPI_UNDEFINED : static_cast<int>(found - requests);
  *flag =
      connection().found(found != requests + count || std::none_of(requests, requests + count, under_way)) ? 1 : 0;
  if (*flag != 0) end(found == requests + count ? &none : found, status);
  return MPI_SUCCESS;
}

RANKWISE_CALL(Testsome, int count, MPI_Request requests[], int* completed, int indices[], MPI_Status statuses[])
{
  const std::lock_guard lock(connection().mutex());
  *completed = 0;
  for (int i = 0; i < count; ++i) {
    if (!has_ended(requests[i])) continue;
    end(&requests[i], at(statuses, *completed));
    indices[(*completed)++] = i;
  }
  if (*completed == 0 && std::none_of(requests, requests + count, under_way)) *completed = MPI_UNDEFINED;
  connection().found(*completed != 0);
  return MPI_SUCCESS;
}

RANKWISE_CALL(Probe, int from, int tag, MPI_Comm comm, MPI_Status* status)
{
  fill_envelope(status, *wait_for_message(from, tag, comm, false, "MPI_Probe"), comm);
  return MPI_SUCCESS;
}

RANKWISE_CALL(Iprobe, int from, int tag, MPI_Comm comm, int* flag, MPI_Status* status)
{
  const std::lock_guard lock(connection().mutex());
  const Message* found = connection().find(of(comm), from, tag, false);
  *flag = connection().found(found != nullptr) ? 1 : 0;
  if (found != nullptr) fill_envelope(status, *found, comm);
  return MPI_SUCCESS;
}

RANKWISE_CALL(Mprobe, int from, int tag, MPI_Comm comm, MPI_Message* message, MPI_Status* status)
{
  Message* found = wait_for_message(from, tag, comm, true, "MPI_Mprobe");
  fill_envelope(status, *found, comm);
  *message = handle_of<MPI_Message>(found);
  return MPI_SUCCESS;
}

RANKWISE_CALL(Improbe, int from, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status)
{
  const std::lock_guard lock(connection().mutex());
  Message* found = connection().find(of(comm), from, tag, true);
  *flag = connection().found(found != nullptr) ? 1 : 0;
  if (found != nullptr) fill_envelope(status, *found, comm);
  if (found != nullptr) *message = handle_of<MPI_Message>(found);
  return MPI_SUCCESS;
}

RANKWISE_CALL(Imrecv, void* data, int count, MPI_Datatype type, MPI_Message* message, MPI_Request* request)
{
  *request = handle_of<MPI_Request>(connection().take(object_of<Message>(*message), elements(data, count, type)));
  *message = MPI_MESSAGE_NULL;
  return MPI_SUCCESS;
}

RANKWISE_CALL(Mrecv, void* data, int count, MPI_Datatype type, MPI_Message* message, MPI_Status* status)
{
  MPI_Request request = MPI_REQUEST_NULL;
  PMPI_Imrecv(data, count, type, message, &request);
  return PMPI_Wait(&request, status);
}

RANKWISE_CALL(Get_count, const MPI_Status* status, MPI_Datatype type, int* count)
{
  const std::size_t bytes = bytes_of(*status), size = size_of(type);
  *count = size == 0 ? 0 : bytes % size == 0 ? static_cast<int>(bytes / size) : MPI_UNDEFINED;
  return MPI_SUCCESS;
}
