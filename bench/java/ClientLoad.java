import com.alibaba.fastjson2.JSON;
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Apache's Java client under the same load as client_load.py; prints its figures as JSON. */
public class ClientLoad {
    private static final byte[] BODY = new byte[128];
    private static final int IN_FLIGHT = 256;
    private static final int BATCH = 512;
    private static final int ONEWAY = 2_000;
    private static final int LATENCY_RATE = 200;
    private static final Map<String, Double> FIGURES = new LinkedHashMap<>();

    interface Step {
        int run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        Arrays.fill(BODY, (byte) 'x');
        String nameServer = args[0];
        double seconds = Double.parseDouble(args[3]);
        latency(nameServer, seconds);
        sends(nameServer, seconds);
        for (int batch : new int[] {1, 32}) {
            consume(nameServer, args[1], Long.parseLong(args[2]), batch, true);
            consume(nameServer, args[1], Long.parseLong(args[2]), batch, false);
        }
        System.out.println(JSON.toJSONString(FIGURES));
        System.exit(0);
    }

    private static double cpuSeconds() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }

    private static void note(String name, long count, double seconds, double cpu) {
        FIGURES.put(name + " msgs/s", count / seconds);
        FIGURES.put(name + " cpu µs/msg", cpu / count * 1e6);
        System.err.printf("   %s: %,.0f msgs/s, %.1f µs%n", name, count / seconds, cpu / count * 1e6);
    }

    private static void forSeconds(String name, double seconds, Step step) throws Exception {
        long end = System.nanoTime() + (long) (seconds / 2 * 1e9);
        while (System.nanoTime() < end) {
            step.run(); // lets the compiler see it
        }
        double cpu = cpuSeconds();
        long began = System.nanoTime();
        long count = 0;
        end = began + (long) (seconds * 1e9);
        while (System.nanoTime() < end) {
            count += step.run();
        }
        note(name, count, (System.nanoTime() - began) / 1e9, cpuSeconds() - cpu);
    }

    private static Message message() {
        return new Message("ClientBench", "TagA", BODY);
    }

    private static void sends(String nameServer, double seconds) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        forSeconds("send one by one", seconds, () -> {
            producer.send(message());
            return 1;
        });
        Semaphore places = new Semaphore(IN_FLIGHT);
        forSeconds("send, " + IN_FLIGHT + " in flight", seconds, () -> {
            places.acquire();
            producer.send(message(), release(places));
            return 1;
        });
        places.acquire(IN_FLIGHT);
        Semaphore batches = new Semaphore(16);
        forSeconds("send many", seconds, () -> {
            List<Message> list = new ArrayList<>(BATCH);
            for (int i = 0; i < BATCH; i++) {
                list.add(message());
            }
            batches.acquire();
            producer.send(list, release(batches));
            return BATCH;
        });
        batches.acquire(16);
        forSeconds("send oneway", seconds, () -> {
            for (int i = 0; i < ONEWAY; i++) {
                producer.sendOneway(message());
            }
            producer.send(message()); // or this client buffers what the broker has not read, until memory ends
            return ONEWAY + 1;
        });
        producer.shutdown();
    }

    private static SendCallback release(Semaphore places) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                places.release();
            }

            @Override
            public void onException(Throwable error) {
                System.err.println("send failed: " + error);
                System.exit(1);
            }
        };
    }

    private static void consume(String nameServer, String topic, long count, int batch, boolean warmUp)
        throws Exception {
        AtomicLong consumed = new AtomicLong();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-" + System.nanoTime());
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(batch);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            consumed.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (consumed.get() == 0) {
            Thread.sleep(1);
        }
        double cpu = cpuSeconds();
        long began = System.nanoTime();
        long before = consumed.get();
        while (consumed.get() < count) {
            Thread.sleep(2);
        }
        if (!warmUp) {
            note("consume, batch " + batch, consumed.get() - before, (System.nanoTime() - began) / 1e9,
                cpuSeconds() - cpu);
        }
        consumer.shutdown();
    }

    private static void latency(String nameServer, double seconds) throws Exception {
        ConcurrentLinkedQueue<Double> seen = new ConcurrentLinkedQueue<>();
        String topic = "ClientLatency";
        DefaultMQProducer producer = new DefaultMQProducer("java-latency");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        producer.send(new Message(topic, "0".getBytes(StandardCharsets.UTF_8)));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("latency-" + System.nanoTime());
        consumer.setNamesrvAddr(nameServer);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(m -> seen.add(
                (System.nanoTime() - Long.parseLong(new String(m.getBody(), StandardCharsets.UTF_8))) / 1e6));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Thread.sleep(3000);
        int count = (int) (seconds * LATENCY_RATE);
        for (int round = 0; round < 2; round++) { // the first lets the compiler see it
            seen.clear();
            for (int i = 0; i < count; i++) {
                producer.send(new Message(topic, Long.toString(System.nanoTime()).getBytes(StandardCharsets.UTF_8)));
                Thread.sleep(1000 / LATENCY_RATE);
            }
            while (seen.size() < count) {
                Thread.sleep(10);
            }
        }
        List<Double> sorted = new ArrayList<>(seen);
        sorted.sort(null);
        FIGURES.put("end to end p50 ms", sorted.get(sorted.size() / 2));
        FIGURES.put("end to end p99 ms", sorted.get((int) (sorted.size() * 0.99)));
        consumer.shutdown();
        producer.shutdown();
    }
}
