import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * A real Java client under remote control: one JSON request a line on standard input, one JSON answer a line on
 * standard output. One process serves a whole test session, because starting a JVM for each step costs seconds.
 */
public class Driver {
    private static final Map<String, DefaultMQProducer> PRODUCERS = new HashMap<>();
    private static final Map<String, Subscriber> SUBSCRIBERS = new HashMap<>();
    private static final Map<String, DefaultLitePullConsumer> PULLERS = new HashMap<>();
    private static PrintStream answers;

    public static void main(String[] args) throws Exception {
        answers = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        answers.println(JSON.toJSONString(Map.of("ready", true)));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JSONObject request = JSON.parseObject(line);
            JSONObject answer = new JSONObject();
            try {
                answer.put("result", serve(request));
            } catch (Throwable error) {
                answer.put("error", error.getClass().getSimpleName());
                answer.put("message", String.valueOf(error.getMessage()));
            }
            answers.println(JSON.toJSONString(answer));
        }
        PRODUCERS.values().forEach(DefaultMQProducer::shutdown);
        SUBSCRIBERS.values().forEach(subscriber -> subscriber.consumer.shutdown());
        PULLERS.values().forEach(DefaultLitePullConsumer::shutdown);
        System.exit(0);
    }

    private static Object serve(JSONObject r) throws Exception {
        switch (r.getString("op")) {
            case "mqadmin": return mqadmin(r.getJSONArray("args"));
            case "send": return send(r);
            case "sendBatch": return sendBatch(r);
            case "sendOneway": return sendOneway(r);
            case "sendOrderly": return sendOrderly(r);
            case "sendAsync": return sendAsync(r);
            case "subscribe": return subscribe(r);
            case "received": return SUBSCRIBERS.get(r.getString("id")).received();
            case "popping": return SUBSCRIBERS.get(r.getString("id")).popping(r.getString("topic"));
            case "assigned": return SUBSCRIBERS.get(r.getString("id")).assigned(r.getString("topic"));
            case "unsubscribe": return unsubscribe(r);
            case "pullStart": return pullStart(r);
            case "poll": return poll(r);
            case "seek": PULLERS.get(r.getString("id")).seek(queue(r), r.getLongValue("offset")); return true;
            case "pullStop": return pullStop(r);
            default: throw new IllegalArgumentException("unknown op " + r.getString("op"));
        }
    }

    // ---- administration -----------------------------------------------------------------------------

    private static Object mqadmin(JSONArray args) throws Exception {
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        PrintStream before = System.out;
        PrintStream captured = new PrintStream(text, true, "UTF-8");
        System.setOut(captured);
        try {
            MQAdminStartup.main0(args.toArray(new String[0]), null);
        } finally {
            System.setOut(before);
        }
        return text.toString(StandardCharsets.UTF_8);
    }

    // ---- producing ----------------------------------------------------------------------------------

    private static DefaultMQProducer producer(JSONObject r) throws Exception {
        String group = r.containsKey("group") ? r.getString("group") : "JavaProducer";
        String key = r.getString("nameServer") + "/" + group;
        DefaultMQProducer producer = PRODUCERS.get(key);
        if (producer == null) {
            producer = new DefaultMQProducer(group);
            producer.setNamesrvAddr(r.getString("nameServer"));
            producer.setSendMsgTimeout(10_000);
            producer.start();
            PRODUCERS.put(key, producer);
        }
        return producer;
    }

    private static List<Message> messages(JSONObject r) {
        List<Message> list = new ArrayList<>();
        for (Object item : r.getJSONArray("messages")) {
            JSONObject m = (JSONObject) item;
            Message message = new Message(r.getString("topic"), m.getString("tag"), m.getString("keys"),
                m.getString("body").getBytes(StandardCharsets.UTF_8));
            if (m.containsKey("delayLevel")) {
                message.setDelayTimeLevel(m.getIntValue("delayLevel"));
            }
            if (m.containsKey("properties")) {
                m.getJSONObject("properties").forEach((k, v) -> message.putUserProperty(k, (String) v));
            }
            list.add(message);
        }
        return list;
    }

    private static Map<String, Object> describe(SendResult result) {
        Map<String, Object> map = new HashMap<>();
        map.put("status", result.getSendStatus().name());
        map.put("messageId", result.getMsgId());
        map.put("offsetId", result.getOffsetMsgId());
        map.put("queueId", result.getMessageQueue().getQueueId());
        map.put("brokerName", result.getMessageQueue().getBrokerName());
        map.put("queueOffset", result.getQueueOffset());
        return map;
    }

    private static Object send(JSONObject r) throws Exception {
        List<Object> results = new ArrayList<>();
        for (Message message : messages(r)) {
            results.add(describe(producer(r).send(message)));
        }
        return results;
    }

    private static Object sendBatch(JSONObject r) throws Exception {
        return describe(producer(r).send(messages(r)));
    }

    private static Object sendOneway(JSONObject r) throws Exception {
        for (Message message : messages(r)) {
            producer(r).sendOneway(message);
        }
        return true;
    }

    private static Object sendOrderly(JSONObject r) throws Exception {
        List<Object> results = new ArrayList<>();
        for (Message message : messages(r)) {
            String shard = message.getKeys();
            results.add(describe(producer(r).send(message, new SelectMessageQueueByHash(), shard)));
        }
        return results;
    }

    private static Object sendAsync(JSONObject r) throws Exception {
        List<Message> list = messages(r);
        List<Object> results = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch done = new CountDownLatch(list.size());
        for (Message message : list) {
            producer(r).send(message, new SendCallback() {
                @Override public void onSuccess(SendResult result) {
                    results.add(describe(result));
                    done.countDown();
                }

                @Override public void onException(Throwable error) {
                    results.add(Map.of("error", String.valueOf(error)));
                    done.countDown();
                }
            });
        }
        done.await(30, TimeUnit.SECONDS);
        return results;
    }

    // ---- consuming ----------------------------------------------------------------------------------

    private static Map<String, Object> describe(MessageExt m) {
        Map<String, Object> map = new HashMap<>();
        map.put("topic", m.getTopic());
        map.put("body", new String(m.getBody(), StandardCharsets.UTF_8));
        map.put("tag", m.getTags());
        map.put("keys", m.getKeys());
        map.put("messageId", m.getMsgId());
        map.put("queueId", m.getQueueId());
        map.put("brokerName", m.getBrokerName());
        map.put("queueOffset", m.getQueueOffset());
        map.put("position", m.getCommitLogOffset());
        map.put("bornHost", m.getBornHostString());
        map.put("storeHost", m.getStoreHost().toString());
        map.put("bodyCrc", m.getBodyCRC());
        map.put("flags", Arrays.asList(m.getFlag(), m.getSysFlag()));
        map.put("reconsumeTimes", m.getReconsumeTimes());
        map.put("bornTimestamp", m.getBornTimestamp());
        map.put("storeTimestamp", m.getStoreTimestamp());
        map.put("properties", m.getProperties());
        map.put("receivedAt", System.currentTimeMillis());
        return map;
    }

    private static final class Subscriber {
        final DefaultMQPushConsumer consumer;
        final List<Map<String, Object>> seen = Collections.synchronizedList(new ArrayList<>());
        final Map<String, AtomicInteger> attempts = new ConcurrentHashMap<>();
        final int failures;
        final int delayLevel;
        final long hangMs;

        Subscriber(JSONObject r) throws Exception {
            failures = r.getIntValue("failures");
            delayLevel = r.getIntValue("delayLevel");
            hangMs = r.getLongValue("hangMs");
            consumer = new DefaultMQPushConsumer(r.getString("group"));
            consumer.setNamesrvAddr(r.getString("nameServer"));
            if (r.containsKey("instance")) {
                consumer.setInstanceName(r.getString("instance"));
            }
            if (r.containsKey("maxReconsumeTimes")) {
                consumer.setMaxReconsumeTimes(r.getIntValue("maxReconsumeTimes"));
            }
            if (r.containsKey("clientRebalance")) {
                consumer.setClientRebalance(r.getBooleanValue("clientRebalance"));
            }
            if (r.containsKey("popInvisibleTime")) {
                consumer.setPopInvisibleTime(r.getLongValue("popInvisibleTime"));
            }
            if (r.containsKey("popThresholdForQueue")) {
                consumer.setPopThresholdForQueue(r.getIntValue("popThresholdForQueue"));
            }
            if (r.containsKey("strategy")) {
                consumer.setAllocateMessageQueueStrategy(strategy(r.getString("strategy"), r));
            }
            consumer.setPollNameServerInterval(1000); // finds its new retry topic at once, not after 30 s
            consumer.setPersistConsumerOffsetInterval(1000);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            String mode = r.getString("mode");
            if ("broadcast".equals(mode)) {
                consumer.setMessageModel(MessageModel.BROADCASTING);
            }
            String sql = r.getString("sql");
            if (sql != null) {
                consumer.subscribe(r.getString("topic"), MessageSelector.bySql(sql));
            } else {
                consumer.subscribe(r.getString("topic"), r.containsKey("tags") ? r.getString("tags") : "*");
            }
            if ("orderly".equals(mode)) {
                consumer.setSuspendCurrentQueueTimeMillis(100);
                consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                    accept(messages) ? ConsumeOrderlyStatus.SUCCESS
                        : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
            } else {
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    if (accept(messages)) {
                        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                    }
                    context.setDelayLevelWhenNextConsume(delayLevel);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                });
            }
            consumer.start();
        }

        private boolean accept(List<MessageExt> messages) {
            boolean ok = true;
            for (MessageExt message : messages) {
                int attempt = attempts.computeIfAbsent(message.getMsgId(), id -> new AtomicInteger()).incrementAndGet();
                Map<String, Object> map = describe(message);
                map.put("attempt", attempt);
                ok &= attempt > failures;
                map.put("ok", attempt > failures);
                seen.add(map);
            }
            hang();
            return ok;
        }

        private void hang() {
            try {
                Thread.sleep(hangMs);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt(); // the consumer is shut down
            }
        }

        List<Map<String, Object>> received() {
            synchronized (seen) {
                return new ArrayList<>(seen);
            }
        }

        /** Ids of the topic's queues that this consumer holds now. */
        List<Integer> assigned(String topic) {
            return ids(topic, consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet());
        }

        /** Ids of the topic's queues that this consumer pops now. */
        List<Integer> popping(String topic) {
            return ids(topic,
                consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getPopProcessQueueTable().keySet());
        }

        private List<Integer> ids(String topic, Collection<MessageQueue> queues) {
            List<Integer> ids = new ArrayList<>();
            for (MessageQueue queue : queues) {
                if (queue.getTopic().equals(topic)) {
                    ids.add(queue.getQueueId());
                }
            }
            Collections.sort(ids);
            return ids;
        }
    }

    /** Queues and clients of the test are in rooms by queue id and by the start of the instance name. */
    private static final class Rooms implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override public String brokerDeployIn(MessageQueue queue) {
            return "room" + queue.getQueueId() % 3;
        }

        @Override public String consumerDeployIn(String clientId) {
            return clientId.split("@")[1].split("-")[0];
        }
    }

    private static AllocateMessageQueueStrategy strategy(String name, JSONObject r) {
        String nearby = "MACHINE_ROOM_NEARBY-";
        if (name.startsWith(nearby)) {
            return new AllocateMachineRoomNearby(strategy(name.substring(nearby.length()), r), new Rooms());
        }
        switch (name) {
            case "AVG": return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE": return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH": return new AllocateMessageQueueConsistentHash();
            case "CONSISTENT_HASH_3": return new AllocateMessageQueueConsistentHash(3);
            case "CONFIG": {
                List<MessageQueue> queues = new ArrayList<>();
                for (Object id : r.getJSONArray("queues")) {
                    queues.add(new MessageQueue(r.getString("topic"), r.getString("brokerName"), (Integer) id));
                }
                AllocateMessageQueueByConfig strategy = new AllocateMessageQueueByConfig();
                strategy.setMessageQueueList(queues);
                return strategy;
            }
            case "MACHINE_ROOM": {
                AllocateMessageQueueByMachineRoom strategy = new AllocateMessageQueueByMachineRoom();
                strategy.setConsumeridcs(Set.copyOf(r.getJSONArray("rooms").toJavaList(String.class)));
                return strategy;
            }
            default: throw new IllegalArgumentException("unknown strategy " + name);
        }
    }

    private static Object subscribe(JSONObject r) throws Exception {
        Subscriber subscriber = new Subscriber(r);
        SUBSCRIBERS.put(r.getString("id"), subscriber);
        return subscriber.consumer.buildMQClientId();
    }

    private static Object unsubscribe(JSONObject r) {
        Subscriber subscriber = SUBSCRIBERS.remove(r.getString("id"));
        if (subscriber != null) {
            subscriber.consumer.shutdown();
        }
        return subscriber != null;
    }

    private static MessageQueue queue(JSONObject r) {
        return new MessageQueue(r.getString("topic"), r.getString("brokerName"), r.getIntValue("queueId"));
    }

    private static Object pullStart(JSONObject r) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(r.getString("group"));
        consumer.setNamesrvAddr(r.getString("nameServer"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (r.getBooleanValue("assign")) {
            consumer.start();
            Collection<MessageQueue> queues = consumer.fetchMessageQueues(r.getString("topic"));
            consumer.assign(queues);
        } else {
            consumer.subscribe(r.getString("topic"), r.containsKey("tags") ? r.getString("tags") : "*");
            consumer.start();
        }
        PULLERS.put(r.getString("id"), consumer);
        return true;
    }

    private static Object poll(JSONObject r) {
        List<Object> list = new ArrayList<>();
        DefaultLitePullConsumer consumer = PULLERS.get(r.getString("id"));
        long end = System.currentTimeMillis() + r.getLongValue("timeoutMs");
        while (list.size() < r.getIntValue("count") && System.currentTimeMillis() < end) {
            consumer.poll(200).forEach(m -> list.add(describe(m)));
        }
        return list;
    }

    private static Object pullStop(JSONObject r) throws Exception {
        DefaultLitePullConsumer consumer = PULLERS.remove(r.getString("id"));
        consumer.commit();
        consumer.shutdown();
        return true;
    }
}
