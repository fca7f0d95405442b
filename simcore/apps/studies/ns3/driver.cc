// Dependent messages over point-to-point links of ns-3, without loss.
//
// Reads a description on stdin (written by simcore/apps/studies/ns3/describe.py) and prints one line:
//     <time of the last completion, ps> <events> <ns-3's own resolution, ps>
//
// Words of the description, one statement per line:
//     set payload_bytes|header_bytes|overhead_ns|ack_bytes|queue_pair_per_message|window VALUE
//     link A B BYTES_PER_S LATENCY_PS       both directions, one PointToPointNetDevice at each end
//     lane SLOTS NODE NODE ...              messages of one sender to one receiver over these nodes
//     path NODE NODE ...                    another way for the lane's messages (ECMP); each takes one by hash
//     send BYTES AFTER COUNT KEY            leaves when COUNT messages have arrived under AFTER
// Sources serve their queue pairs in turn, one packet each; switches are the FIFO queues of the devices.

#include <cstdint>
#include <deque>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "ns3/core-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/ppp-header.h"

using namespace ns3;

namespace
{

constexpr uint32_t PPP_BYTES = 2; // what PointToPointNetDevice adds to each packet
constexpr uint16_t IPV4 = 0x0800;

struct Settings
{
    uint64_t payloadBytes = 4096;
    uint64_t headerBytes = 0;
    uint64_t overheadNs = 0;
    uint64_t ackBytes = 0; // 0: a message is complete on arrival, else when this acknowledgement is back
    bool window = false; // a queue pair's unacknowledged bytes are limited to rate times empty round trip
    bool queuePairPerMessage = false;
} settings;

struct Send
{
    uint64_t bytes, after, count, key;
};

struct Source;

struct Path
{
    std::vector<Ptr<PointToPointNetDevice>> way;  // devices that send, one per hop
    std::vector<Ptr<PointToPointNetDevice>> back; // the same, from the receiver to the sender
    uint64_t windowBytes = UINT64_MAX;
};

struct Lane
{
    uint32_t slots = 1;
    std::vector<Path> paths;
    std::vector<Send> sends;
    size_t position = 0;
    uint32_t inFlight = 0;
    bool waits = false;
    int64_t sequence = -1; // queue pair in use, where the lane has only one
    Source* source = nullptr;
    Source* answers = nullptr;
};

struct Message
{
    Lane* lane;
    uint64_t left, key, unacknowledged;
    const Path* path;
};

/** Which message a packet belongs to, and how far it has come. */
class Stamp : public Tag
{
  public:
    uint32_t message = 0;
    uint16_t hop = 0;
    uint8_t last = 0;
    uint8_t ack = 0;

    static TypeId GetTypeId()
    {
        static TypeId tid = TypeId("simcore::Stamp").SetParent<Tag>().AddConstructor<Stamp>();
        return tid;
    }

    TypeId GetInstanceTypeId() const override { return GetTypeId(); }

    uint32_t GetSerializedSize() const override { return 8; }

    void Serialize(TagBuffer b) const override
    {
        b.WriteU32(message);
        b.WriteU16(hop);
        b.WriteU8(last);
        b.WriteU8(ack);
    }

    void Deserialize(TagBuffer b) override
    {
        message = b.ReadU32();
        hop = b.ReadU16();
        last = b.ReadU8();
        ack = b.ReadU8();
    }

    void Print(std::ostream& os) const override { os << message << "@" << hop; }
};

/** A sender's port: queue pairs in turn, acknowledgements first. */
struct Source
{
    Ptr<PointToPointNetDevice> device;
    std::deque<Ptr<Packet>> acks;
    std::map<int64_t, std::deque<uint32_t>> pairs; // queue pair -> its messages in order
    int64_t last = -1;
    bool busy = false;

    void Fill();
    void Ended(Ptr<const Packet>);
    Ptr<Packet> Next();
};

std::unordered_map<uint64_t, uint64_t> arrived;
std::unordered_map<uint64_t, std::vector<Lane*>> waiting;
std::deque<Lane> lanes;
std::vector<Message> messages;
std::map<std::pair<uint32_t, uint32_t>, Ptr<PointToPointNetDevice>> devices;
std::map<std::pair<uint32_t, uint32_t>, std::pair<double, double>> wires; // bytes/s, latency in s
std::map<Ptr<PointToPointNetDevice>, Source> sources;
int64_t sequences = 0;
int64_t endPs = 0;

void GoOn(Lane* lane);

Ptr<Packet>
Source::Next()
{
    if (!acks.empty())
    {
        auto packet = acks.front();
        acks.pop_front();
        return packet;
    }
    auto it = pairs.upper_bound(last);
    for (size_t tried = 0; tried < pairs.size(); ++tried, ++it)
    {
        if (it == pairs.end())
        {
            it = pairs.begin();
        }
        auto id = it->second.front();
        auto& message = messages[id];
        if (message.unacknowledged >= message.path->windowBytes)
        {
            continue;
        }
        last = it->first;
        auto bytes = std::min(message.left, settings.payloadBytes);
        message.left -= bytes;
        message.unacknowledged += bytes;
        Stamp stamp;
        stamp.message = id;
        stamp.last = message.left == 0;
        if (stamp.last)
        {
            it->second.pop_front();
            if (it->second.empty())
            {
                message.lane->sequence = -1;
                pairs.erase(it);
            }
        }
        auto packet = Create<Packet>(bytes + settings.headerBytes - PPP_BYTES);
        packet->AddPacketTag(stamp);
        return packet;
    }
    return nullptr;
}

void
Source::Fill()
{
    if (busy)
    {
        return;
    }
    if (auto packet = Next())
    {
        busy = true;
        device->Send(packet, device->GetBroadcast(), IPV4);
    }
}

// The device asks its queue for the next packet right after this, so the next packet is put there.
void
Source::Ended(Ptr<const Packet>)
{
    busy = false;
    if (auto packet = Next())
    {
        busy = true;
        PppHeader ppp;
        ppp.SetProtocol(0x0021);
        packet->AddHeader(ppp);
        device->GetQueue()->Enqueue(packet);
    }
}

void
Post(Lane* lane, Send send)
{
    auto id = static_cast<uint32_t>(messages.size());
    const auto& path = lane->paths[Hash32(std::to_string(id)) % lane->paths.size()];
    messages.push_back({lane, send.bytes, send.key, 0, &path});
    if (settings.queuePairPerMessage || lane->sequence < 0)
    {
        lane->sequence = sequences++;
    }
    lane->source->pairs[lane->sequence].push_back(id);
    lane->source->Fill();
}

void
GoOn(Lane* lane)
{
    while (!lane->waits && lane->inFlight < lane->slots && lane->position < lane->sends.size())
    {
        const auto& send = lane->sends[lane->position];
        if (send.count && arrived[send.after] < send.count)
        {
            lane->waits = true;
            waiting[send.after].push_back(lane);
            return;
        }
        ++lane->position;
        ++lane->inFlight;
        if (settings.overheadNs)
        {
            Simulator::Schedule(NanoSeconds(settings.overheadNs), &Post, lane, send);
        }
        else
        {
            Post(lane, send);
        }
    }
}

void
Complete(Message& message)
{
    endPs = Simulator::Now().GetPicoSeconds();
    ++arrived[message.key];
    auto lane = message.lane;
    auto woken = std::move(waiting[message.key]);
    waiting.erase(message.key);
    for (auto other : woken)
    {
        other->waits = false;
        GoOn(other);
    }
    --lane->inFlight;
    GoOn(lane);
}

bool
Receive(Ptr<NetDevice>, Ptr<const Packet> received, uint16_t, const Address&)
{
    auto packet = received->Copy();
    Stamp stamp;
    packet->RemovePacketTag(stamp);
    auto& message = messages[stamp.message];
    auto lane = message.lane;
    auto& way = stamp.ack ? message.path->back : message.path->way;
    if (++stamp.hop < way.size())
    {
        packet->AddPacketTag(stamp);
        way[stamp.hop]->Send(packet, way[stamp.hop]->GetBroadcast(), IPV4);
    }
    else if (stamp.ack)
    {
        auto bytes = std::min(message.unacknowledged, settings.payloadBytes);
        message.unacknowledged -= bytes;
        if (stamp.last)
        {
            Complete(message);
        }
        else
        {
            lane->source->Fill();
        }
    }
    else if (settings.ackBytes)
    {
        if (stamp.last || settings.window)
        {
            Stamp answer = stamp;
            answer.hop = 0;
            answer.ack = 1;
            auto ack = Create<Packet>(settings.ackBytes - PPP_BYTES);
            ack->AddPacketTag(answer);
            lane->answers->acks.push_back(ack);
            lane->answers->Fill();
        }
    }
    else if (stamp.last)
    {
        Complete(message);
    }
    return true;
}

Source*
SourceOf(Ptr<PointToPointNetDevice> device)
{
    auto found = sources.find(device);
    if (found == sources.end())
    {
        found = sources.emplace(device, Source()).first;
        found->second.device = device;
        device->TraceConnectWithoutContext("PhyTxEnd", MakeCallback(&Source::Ended, &found->second));
    }
    return &found->second;
}

void
ReadSetting(std::istringstream& words)
{
    std::string name;
    uint64_t value;
    words >> name >> value;
    std::map<std::string, uint64_t*> numbers{{"payload_bytes", &settings.payloadBytes},
                                             {"header_bytes", &settings.headerBytes},
                                             {"overhead_ns", &settings.overheadNs},
                                             {"ack_bytes", &settings.ackBytes}};
    if (name == "queue_pair_per_message")
    {
        settings.queuePairPerMessage = value;
    }
    else if (name == "window")
    {
        settings.window = value;
    }
    else if (auto found = numbers.find(name); found != numbers.end())
    {
        *found->second = value;
    }
    else
    {
        NS_FATAL_ERROR("unknown setting " << name);
    }
}

void
ReadLink(std::istringstream& words, std::map<uint32_t, Ptr<Node>>& nodes)
{
    uint32_t a;
    uint32_t b;
    double bytesPerS;
    int64_t latencyPs;
    words >> a >> b >> bytesPerS >> latencyPs;
    PointToPointHelper helper;
    helper.SetDeviceAttribute("DataRate", DataRateValue(DataRate(static_cast<uint64_t>(bytesPerS * 8.0))));
    helper.SetChannelAttribute("Delay", TimeValue(PicoSeconds(latencyPs)));
    helper.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue("4000000000p"));
    for (auto end : {a, b})
    {
        if (!nodes.count(end))
        {
            nodes[end] = CreateObject<Node>();
        }
    }
    auto pair = helper.Install(nodes[a], nodes[b]);
    for (uint32_t i = 0; i < 2; ++i)
    {
        auto device = DynamicCast<PointToPointNetDevice>(pair.Get(i));
        device->SetReceiveCallback(MakeCallback(&Receive));
        auto key = i ? std::make_pair(b, a) : std::make_pair(a, b);
        devices[key] = device;
        wires[key] = {bytesPerS, latencyPs * 1e-12};
    }
}

void
ReadPath(std::istringstream& words, Lane& lane)
{
    std::vector<uint32_t> nodes;
    for (uint32_t node; words >> node;)
    {
        nodes.push_back(node);
    }
    Path path;
    double roundTripS = 0.0;
    double bytesPerS = 1e18;
    for (size_t i = 0; i + 1 < nodes.size(); ++i)
    {
        path.way.push_back(devices.at({nodes[i], nodes[i + 1]}));
        path.back.insert(path.back.begin(), devices.at({nodes[i + 1], nodes[i]}));
        auto [rate, latencyS] = wires.at({nodes[i], nodes[i + 1]});
        roundTripS += 2.0 * latencyS + settings.payloadBytes / rate;
        bytesPerS = std::min(bytesPerS, rate);
    }
    if (settings.window)
    {
        path.windowBytes = static_cast<uint64_t>(roundTripS * bytesPerS);
    }
    lane.source = SourceOf(path.way.front());
    lane.answers = SourceOf(path.back.front());
    lane.paths.push_back(path);
}

} // namespace

int
main(int argc, char** argv)
{
    if (argc > 1)
    {
        Time::SetResolution(std::string(argv[1]) == "ps" ? Time::PS : Time::NS);
    }
    std::map<uint32_t, Ptr<Node>> nodes;
    for (std::string line; std::getline(std::cin, line);)
    {
        std::istringstream words(line);
        std::string kind;
        words >> kind;
        if (kind == "set")
        {
            ReadSetting(words);
        }
        else if (kind == "link")
        {
            ReadLink(words, nodes);
        }
        else if (kind == "lane")
        {
            lanes.emplace_back();
            words >> lanes.back().slots;
            ReadPath(words, lanes.back());
        }
        else if (kind == "path")
        {
            ReadPath(words, lanes.back());
        }
        else if (kind == "send")
        {
            Send send;
            words >> send.bytes >> send.after >> send.count >> send.key;
            lanes.back().sends.push_back(send);
        }
    }
    for (auto& lane : lanes)
    {
        Simulator::Schedule(Seconds(0), &GoOn, &lane);
    }
    Simulator::Run();
    std::cout << endPs << " " << Simulator::GetEventCount() << " " << Time::GetResolution() << std::endl;
    for (auto& lane : lanes)
    {
        if (lane.position < lane.sends.size())
        {
            std::cerr << "messages were left waiting" << std::endl;
            return 1;
        }
    }
    return 0;
}
